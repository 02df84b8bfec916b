"""The documentation site: pages whose code is run, a reference out of the package, one folder that needs no network."""
