package oncehttp

import "time"

// SendWithin is the default limit of all tries of a Transport.
const SendWithin = sendWithin

// SetCallerTimeout changes the time that a caller may take, and returns the one before.
func SetCallerTimeout(to time.Duration) (before time.Duration) {
	before, callerTimeout = callerTimeout, to
	return before
}
