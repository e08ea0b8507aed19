"""The studies that are installed with the package, one TOML file each; `fairbound.benchmark.study`
reads them."""
