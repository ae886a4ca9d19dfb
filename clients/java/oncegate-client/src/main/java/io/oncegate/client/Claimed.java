package io.oncegate.client;

/** The answer to a claim call. */
public sealed interface Claimed permits Grant, Duplicate, Mismatch {}
