"""The benchmark: experiments as files (`spec`), and what runs, stores and reports them."""
