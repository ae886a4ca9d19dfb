/** The Idempotency-Key middleware as a filter of WebFlux. */
package io.oncegate.spring.webflux;
