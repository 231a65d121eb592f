"""Failures on order: named, parameterized and composable, for load tests of the failure paths. Off unless enabled."""
