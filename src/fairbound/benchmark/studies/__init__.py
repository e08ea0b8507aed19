"""The studies that are installed with the package, one TOML file each; `fairbound.benchmark._study`
reads them."""
