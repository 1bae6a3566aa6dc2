"""The one command `dpdpca`; each role's part is loaded only when it is called."""
