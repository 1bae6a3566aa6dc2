"""The protocol of DPDPCA: bytes and values in, bytes and values out; no I/O, no clock."""
