/**
 * The Idempotency-Key middleware: key, fingerprint, claim, recorder, outcome, replay and refusals.
 * The filters for servlets and WebFlux are thin adapters of it.
 */
package io.oncegate.client.http;
