"""HTTP requests of functions: to the run's engine, and to any other server."""

import asyncio
import json
import ssl
import urllib.parse

from miles import host
from miles.utils.misc import is_port_available  # noqa: F401

MAX_BODY = 1 << 30


class HTTPStatusError(Exception):
    """A response with another status than 2xx."""

    def __init__(self, url, status, text):
        super().__init__(f"{url} answered with status {status}: {text[:500]}")
        self.status_code, self.text = status, text


class _Client:
    """Keeps connections open for the next request.  One event loop has one client."""

    def __init__(self):
        self.idle = {}

    async def connect(self, scheme, name, port):
        idle = self.idle.setdefault((scheme, name, port), [])
        while idle:
            reader, writer = idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer, True
        secure = ssl.create_default_context() if scheme == "https" else None
        reader, writer = await asyncio.open_connection(name, port, ssl=secure, limit=1 << 24)
        return reader, writer, False

    async def once(self, method, url, body, headers):
        at = urllib.parse.urlsplit(url)
        scheme, port = at.scheme or "http", at.port or (443 if at.scheme == "https" else 80)
        path = (at.path or "/") + ("?" + at.query if at.query else "")
        head = {"Host": at.netloc.rpartition("@")[2], "Content-Length": str(len(body)), "Accept": "*/*"}
        if body:
            head["Content-Type"] = "application/json"
        key = host.key_of(at.hostname, port)
        if key:
            head["Authorization"] = "Bearer " + key
        head.update(headers or {})
        text = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in head.items()) + "\r\n"
        for last in (False, True):
            reader, writer, old = await self.connect(scheme, at.hostname, port)
            try:
                writer.write(text.encode("latin-1") + body)
                await writer.drain()
                status, answer, keep = await self.read(reader)
            except (OSError, EOFError) as error:
                writer.close()
                if old and not last:  # the server had closed an idle connection
                    continue
                raise ConnectionError(f"no response from {url}: {error or type(error).__name__}") from error
            except BaseException:
                writer.close()
                raise
            if keep:
                self.idle[scheme, at.hostname, port].append((reader, writer))
            else:
                writer.close()
            return status, answer

    @staticmethod
    async def read(reader):
        status = int((await reader.readuntil(b"\r\n")).split(None, 2)[1])
        head = {}
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            name, _, value = line.decode("latin-1").partition(":")
            head[name.strip().lower()] = value.strip()
        if status in (204, 304):  # without a body
            body = b""
        elif head.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readuntil(b"\r\n")
            body = b"".join(parts)
        elif "content-length" in head:
            size = int(head["content-length"])
            if size > MAX_BODY:
                raise ValueError(f"a body of {size} bytes is too long")
            body = await reader.readexactly(size)
        else:
            return status, await reader.read(MAX_BODY), False
        return status, body, head.get("connection", "").lower() != "close"


_clients = {}


def _client():
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = _Client()
    return _clients[loop]


def init_http_client(args):
    """A client is made when it is needed."""


async def request(method, url, payload=None, headers=None):
    """The body of a 2xx response: parsed JSON, or text."""
    body = b"" if payload is None else json.dumps(payload).encode()
    status, answer = await _client().once(method, url, body, headers)
    text = answer.decode("utf-8", "replace")
    if not 200 <= status < 300:
        raise HTTPStatusError(url, status, text)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_seed(url, payload):
    """Requests to the run's engine have a seed, so that a run can be repeated."""
    at = urllib.parse.urlsplit(url)
    call = host.call.get()
    if call is None or at.path != "/generate" or not host.key_of(at.hostname, at.port) or not isinstance(payload, dict):
        return payload
    params = payload.get("sampling_params") or {}
    if not isinstance(params, dict) or params.get("sampling_seed") is not None:
        return payload
    return {**payload, "sampling_params": {**params, "sampling_seed": call.next_seed()}}


def _is_final(error):
    """Whether the same request would be refused again."""
    return isinstance(error, HTTPStatusError) and 400 <= error.status_code < 500 and error.status_code not in (408, 429)


async def post(url, payload, max_retries=60, action="post", headers=None):
    """Sends a request until it succeeds, at most max_retries times, a second apart."""
    payload = _with_seed(url, payload)
    for attempt in range(1, max(1, max_retries) + 1):
        try:
            return await request(action.upper(), url, None if action in ("get", "delete") else payload or {}, headers)
        except (ConnectionError, OSError, HTTPStatusError, asyncio.IncompleteReadError) as error:
            if attempt >= max_retries or _is_final(error):
                raise
            await asyncio.sleep(1)


async def get(url):
    return await request("GET", url)


async def wait_http_ok(url, *, json_payload=None, timeout=180.0, request_timeout=60.0):
    """Waits until a server answers with status 200."""
    until = asyncio.get_running_loop().time() + timeout
    while True:
        try:
            method = "GET" if json_payload is None else "POST"
            await asyncio.wait_for(request(method, url, json_payload), request_timeout)
            return
        except (OSError, HTTPStatusError, asyncio.TimeoutError) as error:
            if asyncio.get_running_loop().time() > until:
                raise TimeoutError(f"{url} was not ready within {timeout} s: {error}") from error
        await asyncio.sleep(1)


def router_worker_base_urls(urls):
    """Addresses of engines without the rank after @, each once."""
    bases = [u.rpartition("@")[0] if u.rpartition("@")[2].isdigit() and "@" in u else u for u in urls]
    return list(dict.fromkeys(bases))


def _wrap_ipv6(address):
    bare = address.strip("[]")
    return f"[{bare}]" if ":" in bare else address
