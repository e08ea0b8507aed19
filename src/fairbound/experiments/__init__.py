"""The experiments that are installed with the package, one TOML file each; `fairbound.bench.spec` reads them."""
