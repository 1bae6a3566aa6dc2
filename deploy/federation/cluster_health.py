"""Make a TLS connection to a member of the Dask cluster: exit status 0 if it is one.

Usage: cluster_health.py HOST PORT
"""

import socket
import ssl
import sys

FOLDER = "/run/dpdpca/secrets/cluster"

trust = ssl.create_default_context(cafile=f"{FOLDER}/ca.pem")
trust.check_hostname = False  # the authority alone says who belongs to the cluster
trust.load_cert_chain(f"{FOLDER}/tls.pem", f"{FOLDER}/tls.key")
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=8) as link, trust.wrap_socket(link):
    pass
