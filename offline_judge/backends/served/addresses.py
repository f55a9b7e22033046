"""Addresses of OpenAI-compatible servers."""

from __future__ import annotations

from urllib.parse import urlsplit

from offline_judge.air_gap import host_of, is_local, normal_host
from offline_judge.errors import UserError


def is_address(text: str) -> bool:
    """Whether a judge is named by address rather than by model."""
    return text.startswith(("http://", "https://"))


def parse_addresses(text: str) -> tuple[str, ...]:
    """Split "http://127.0.0.1:8000/v1,http://127.0.0.1:8001/v1" and check each.

    Returns:
        The addresses without a slash at the end, each once.

    Raises:
        UserError: where one is no http address, or has no path such as /v1.
    """
    addresses = []
    for part in text.split(","):
        address = part.strip().rstrip("/")
        try:
            parts = urlsplit(address)
            is_complete = bool(parts.scheme in ("http", "https") and parts.hostname and parts.path)
            _ = parts.port
        except ValueError:
            is_complete = False
        if not is_complete or parts.username or parts.query or parts.fragment:
            raise UserError(
                f"judge {address!r} is not the address of a server",
                {"wanted": "http://HOST:PORT/v1, several separated by commas"},
            )
        addresses.append(address)
    return tuple(dict.fromkeys(addresses))


def hosts_of(judge: str | None) -> list[str]:
    """HOST:PORT of each address that a judge is named by; none for a model's name or folder."""
    if judge is None or not is_address(judge):
        return []
    return [host for address in parse_addresses(judge) for host in host_of(address)]


def is_loopback(address: str) -> bool:
    """Whether the server runs on this very machine."""
    return is_local(normal_host(urlsplit(address).hostname))
