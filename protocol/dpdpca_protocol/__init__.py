"""The protocol of DPDPCA.

The functions of this package take and return bytes and values; they do no I/O and read no clock.

Other packages may import every module.
"""
