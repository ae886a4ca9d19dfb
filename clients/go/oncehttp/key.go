package oncehttp

import "strings"

const keyLengthMax = 255

// keyOf returns the key of a request: 1 to 255 visible ASCII characters, bare or as a string of structured fields (RFC 8941, 3.3.3). Both forms are the
// same key. Otherwise it says what is wrong.
func keyOf(lines []string) (key, problem string) {
	const fresh = "; send a fresh random value for each operation, such as a UUID."
	if len(lines) == 0 {
		return "", "Idempotency-Key is missing" + fresh
	}
	if len(lines) > 1 {
		return "", "Idempotency-Key came twice; send one field with one key."
	}
	key = strings.Trim(lines[0], " \t\r\n\f")
	if rest, quoted := strings.CutPrefix(key, `"`); quoted {
		if key, problem = unquoted(rest); problem != "" {
			return "", problem
		}
	}
	if key == "" || len(key) > keyLengthMax {
		return "", "Idempotency-Key is empty or longer than 255 characters" + fresh
	}
	for _, char := range []byte(key) {
		if char < 0x21 || char > 0x7e {
			return "", "Idempotency-Key may have visible ASCII characters only" + fresh
		}
	}
	return key, ""
}

// unquoted returns the text of a quoted string after its first quote.
func unquoted(rest string) (text, problem string) {
	const wrong = "Idempotency-Key begins with a quote, and is not a string of structured fields: close it, and escape quotes by a backslash."
	var out strings.Builder
	for at := 0; at < len(rest); at++ {
		switch char := rest[at]; char {
		case '"':
			after := strings.TrimLeft(rest[at+1:], " \t")
			if after == "" {
				return out.String(), ""
			}
			if after[0] == ';' {
				return "", "Idempotency-Key has parameters after the string; send the string alone."
			}
			return "", wrong
		case '\\':
			at++
			if at == len(rest) || rest[at] != '"' && rest[at] != '\\' {
				return "", wrong
			}
			out.WriteByte(rest[at])
		default:
			out.WriteByte(char)
		}
	}
	return "", wrong
}
