/** The Idempotency-Key middleware as a filter of servlets. */
package io.oncegate.client.servlet;
