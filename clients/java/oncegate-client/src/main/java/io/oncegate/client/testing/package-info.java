/** A gateway in the memory of a test. */
package io.oncegate.client.testing;
