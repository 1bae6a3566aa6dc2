"""The HTTP client for a proxy, with signed requests. Owners and the data user use this client."""
