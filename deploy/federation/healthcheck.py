"""Ask one https address, trusting the federation's authority: exit status 0 if it answers 200.

Usage: healthcheck.py URL
"""

import os
import ssl
import sys
from http.client import HTTPSConnection
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
trust = ssl.create_default_context(cafile=os.environ["DPDPCA_CA_FILE"])
connection = HTTPSConnection(url.hostname or "", url.port, timeout=8, context=trust)
connection.request("GET", url.path)
sys.exit(connection.getresponse().status != 200)
