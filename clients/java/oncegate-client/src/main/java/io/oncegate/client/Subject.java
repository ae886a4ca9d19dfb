package io.oncegate.client;

/** The operation or lock that a call is about, for events. */
record Subject(String operation, String globalId) {}
