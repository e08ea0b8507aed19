"""A problem as a function of flat parameters, and `run`: one run of a method or thousands at
once."""
