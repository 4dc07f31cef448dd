"""The store of PyTorch's rendezvous over messages of the MPI: no port is opened, on one node and on several."""

from datetime import timedelta

import torch.distributed as dist

from ringtrain.errors import StalledError
from ringtrain.transport.key_value import KeyValueStore


class WorldStore(dist.Store):
    """The keys and values of the world, for PyTorch. Its C++ stores call ``deleteKey`` and ``getNumKeys``; Python has
    the other names."""

    def __init__(self, keys: KeyValueStore):
        super().__init__()
        self.keys = keys

    def _request(self, do: str, keys, values=(), timeout_s: float = 0.0) -> list:
        encoded = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
        try:
            return self.keys.request(do, keys, encoded, timeout_s)
        except StalledError as error:
            raise dist.DistStoreError(str(error)) from None

    @property
    def _timeout_s(self) -> float:
        return self.timeout.total_seconds()

    def set(self, key, value):
        self._request("set", [key], [value])

    def get(self, key) -> bytes:
        return self._request("get", [key], timeout_s=self._timeout_s)[0]

    def add(self, key, amount) -> int:
        return self._request("add", [key], [str(amount)])[0]

    def append(self, key, value):
        self._request("append", [key], [value])

    def check(self, keys) -> bool:
        return self._request("check", keys)[0]

    def compare_set(self, key, expected, desired) -> bytes:
        return self._request("compare_set", [key], [expected, desired])[0]

    def delete_key(self, key) -> bool:
        return self._request("delete", [key])[0]

    deleteKey = delete_key

    def num_keys(self) -> int:
        return self._request("count", [])[0]

    getNumKeys = num_keys

    def multi_get(self, keys) -> list[bytes]:
        return self._request("get", keys, timeout_s=self._timeout_s)

    def multi_set(self, keys, values):
        self._request("set", keys, values)

    def wait(self, keys, timeout: timedelta | None = None):
        self._request("wait", keys, timeout_s=self._timeout_s if timeout is None else timeout.total_seconds())

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "WorldStore":
        return self
