"""The fixture `oncegate` as an installed package brings it."""

pytest_plugins = ["oncegate._pytest"]
