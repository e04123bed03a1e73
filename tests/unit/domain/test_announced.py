"""Announced builds: the keys an image would make, before any node runs it."""

import pytest
from tests import given

from smgate.domain import announced, commands, errors

PACKAGES = {
    "sglang_version": given.BUILD.sglang_version,
    "flashinfer_version": given.BUILD.flashinfer_version,
    "torch_cuda": given.BUILD.torch_cuda,
    **({"cuda_toolkit": given.BUILD.cuda_toolkit} if given.BUILD.cuda_toolkit else {}),
}


def announce(fleet, **more):
    packages = {**PACKAGES, **more}
    fleet.orders(commands.AnnounceBuild(name="image", packages=packages, reason="release"))
    return announced.kernel_keys(fleet.state, fleet.state.announced["image"])


def test_an_image_has_no_key_before_a_launch_shows_sm_driver_and_layout():
    assert announce(given.Fleet().enforce()) == {}


def test_an_image_is_expanded_by_what_the_fleet_has_launched():
    fleet = given.Fleet().enforce()
    fleet.node("a")
    fleet.launch("a", build=given.build(flashinfer_version="0.9.9"))
    assert announce(fleet) == {given.KEY: "unknown"}


def test_pin_digests_are_part_of_the_key():
    fleet = given.Fleet().enforce()
    pins = {"TRTLLM_GEN_BMM": "49bce842"}
    fleet.node("a")
    fleet.launch("a", build=given.build(artifact_pins=pins))
    key = given.key_of(given.build(artifact_pins=pins))
    found = announce(fleet, **{"artifact_pins.TRTLLM_GEN_BMM": "49bce842"})
    assert found == {key: "unknown"}
    assert key != given.KEY


def test_a_package_that_no_build_has_is_refused():
    with pytest.raises(errors.RejectedError, match="artifact_pin"):
        announce(given.Fleet(), **{"artifact_pin.X": "1"})
