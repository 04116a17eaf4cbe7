"""The operator's token: opens to callers from elsewhere what only the broker's own machine may ask for.

It comes from the environment and from nowhere else, and it is no setting: settings are served by the admin
API and written into logs. Nothing prints it.
"""

from __future__ import annotations

from collections.abc import Mapping

OPERATOR_TOKEN_VARIABLE = "GEMINGA_OPERATOR_TOKEN"
TOKEN_CHARACTERS_MIN = 16
TOKEN_CHARACTERS_MAX = 1024
_SCHEME = "bearer "


class OperatorToken:
    """A token, or none: then nothing opens."""

    __slots__ = ("_token",)

    def __init__(self, token: str = "") -> None:
        self._token = token

    def __repr__(self) -> str:
        return f"OperatorToken({'set' if self._token else 'not set'})"

    @property
    def is_set(self) -> bool:
        return bool(self._token)

    def is_in(self, authorization: str) -> bool:
        """True if an `Authorization` header brings the token: `Bearer TOKEN`. It takes as long for a token
        that is nearly right as for any other.
        """
        # Digests of one length: the time of the comparison does not tell how long the token is either.
        import hashlib  # not before ready: OpenSSL takes megabytes
        from hmac import compare_digest

        if not self._token or authorization[: len(_SCHEME)].lower() != _SCHEME:
            return False
        given = hashlib.sha256(authorization[len(_SCHEME) :].strip(" ").encode("utf-8", "surrogateescape"))
        return compare_digest(given.digest(), hashlib.sha256(self._token.encode()).digest())


NO_OPERATOR_TOKEN = OperatorToken()


def operator_token(environment: Mapping[str, str]) -> OperatorToken:
    """The token of the environment. An empty variable is none. `ValueError` says what is wrong with it,
    without the token.
    """
    token = environment.get(OPERATOR_TOKEN_VARIABLE, "").strip()
    if not token:
        return NO_OPERATOR_TOKEN
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"environment variable {OPERATOR_TOKEN_VARIABLE}: a token has only visible ASCII characters"
        )
    if not TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise ValueError(
            f"environment variable {OPERATOR_TOKEN_VARIABLE}: a token has {TOKEN_CHARACTERS_MIN} to "
            f"{TOKEN_CHARACTERS_MAX} characters, this one has {len(token)}; 'openssl rand -hex 16' makes one"
        )
    return OperatorToken(token)


def operator_headers(environment: Mapping[str, str], path: str) -> dict[str, str]:
    """The operator's token as a header, for the routes that take it: all of them are Geminga's own."""
    token = environment.get(OPERATOR_TOKEN_VARIABLE, "").strip()
    return {"Authorization": f"Bearer {token}"} if token and path.startswith("/geminga/") else {}
