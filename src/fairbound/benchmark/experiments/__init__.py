"""The experiments that are installed with the package, one TOML file each; `fairbound.benchmark.config` reads them."""
