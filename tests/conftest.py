"""Fixtures that several test files share."""

from __future__ import annotations

import pytest

import fake_domain


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> fake_domain.World:
    """The domain, suite and proposer ``fake``, installed for one test."""
    return fake_domain.install(fake_domain.World(), monkeypatch.setattr)
