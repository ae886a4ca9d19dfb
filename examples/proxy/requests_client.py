#!/usr/bin/env python3
"""`requests` with the retries of urllib3, over connections that lose the first answers: one order all the same.

Usage: requests_client.py URL, with the package `requests` installed.
"""

import sys
import uuid

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

# urllib3 does not retry a POST by default. With a key it is safe: 409 means that the first try is still running.
retries = Retry(total=5, backoff_factor=0.1, allowed_methods={"POST"}, status_forcelist={429, 503})
session = requests.Session()
session.trust_env = False
session.mount("http://", HTTPAdapter(max_retries=retries))
response = session.post(
    f"{sys.argv[1]}/v1/orders", json={"item": 6}, headers={"Idempotency-Key": str(uuid.uuid4())}, timeout=10
)
response.raise_for_status()
print(response.status_code, f"replayed={response.headers.get('Idempotent-Replayed', '')}")
