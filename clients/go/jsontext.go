package oncegate

import (
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonText writes JSON text in canonical form, as the gateway reads it: no key twice, no lone surrogate, and no number that a double does not keep.
func (s *speller) jsonText(text string, depth int) error {
	p := parser{speller: s, in: text, root: string(s.path)}
	written, err := p.value(depth)
	if err == nil {
		p.space()
		if p.at < len(p.in) {
			err = p.fail("something follows the value")
		}
	}
	if err != nil {
		return err
	}
	s.out.WriteString(written)
	return nil
}

// parser is strict where encoding/json is lenient.
type parser struct {
	*speller
	in   string
	at   int
	root string
}

func (p *parser) fail(detail string) error {
	return refuse(ReasonNotJSON, p.root, "not JSON at byte "+strconv.Itoa(p.at)+": "+detail)
}

func (p *parser) space() {
	for p.at < len(p.in) && strings.IndexByte(" \t\r\n", p.in[p.at]) >= 0 {
		p.at++
	}
}

// take skips white space and this byte, if it is next.
func (p *parser) take(char byte) bool {
	p.space()
	if p.at < len(p.in) && p.in[p.at] == char {
		p.at++
		return true
	}
	return false
}

func (p *parser) value(depth int) (string, error) {
	p.space()
	if p.at == len(p.in) {
		return "", p.fail("it ends too early")
	}
	switch p.in[p.at] {
	case '{', '[':
		if depth == depthMax {
			return "", p.tooDeep()
		}
		if p.in[p.at] == '{' {
			return p.object(depth)
		}
		return p.list(depth)
	case '"':
		text, err := p.string()
		if err != nil {
			return "", err
		}
		p.hasValue = p.hasValue || text != ""
		return quoted(text), nil
	}
	for _, word := range []string{"null", "true", "false"} {
		if strings.HasPrefix(p.in[p.at:], word) {
			p.at += len(word)
			p.hasValue = p.hasValue || word != "null"
			return word, nil
		}
	}
	return p.number()
}

func quoted(text string) string {
	var out strings.Builder
	writeQuoted(&out, text)
	return out.String()
}

func (p *parser) list(depth int) (string, error) {
	p.at++
	if p.take(']') {
		return "[]", nil
	}
	var items []string
	for {
		length := p.enter("[" + strconv.Itoa(len(items)) + "]")
		item, err := p.value(depth + 1)
		if err != nil {
			return "", err
		}
		p.path = p.path[:length]
		items = append(items, item)
		if p.take(']') {
			return "[" + strings.Join(items, ",") + "]", nil
		}
		if !p.take(',') {
			return "", p.fail("a comma or ] is missing")
		}
	}
}

func (p *parser) object(depth int) (string, error) {
	p.at++
	if p.take('}') {
		return "{}", nil
	}
	values := map[string]string{}
	var names []string
	for {
		p.space()
		if p.at == len(p.in) || p.in[p.at] != '"' {
			return "", p.fail("a name is missing")
		}
		name, err := p.string()
		if err != nil {
			return "", err
		}
		if _, twice := values[name]; twice {
			return "", p.fail("a key occurs twice in its object")
		}
		if !p.take(':') {
			return "", p.fail("a colon is missing")
		}
		length := p.enter(step(name))
		if values[name], err = p.value(depth + 1); err != nil {
			return "", err
		}
		p.path = p.path[:length]
		names = append(names, name)
		if p.take('}') {
			break
		}
		if !p.take(',') {
			return "", p.fail("a comma or } is missing")
		}
	}
	sort.Slice(names, func(i, j int) bool { return lessUTF16(names[i], names[j]) })
	for at, name := range names {
		names[at] = quoted(name) + ":" + values[name]
	}
	return "{" + strings.Join(names, ",") + "}", nil
}

// string reads a string, beginning at its quote.
func (p *parser) string() (string, error) {
	p.at++
	var out strings.Builder
	for p.at < len(p.in) {
		char, size := utf8.DecodeRuneInString(p.in[p.at:])
		switch {
		case char == '"':
			p.at++
			return out.String(), nil
		case char < 0x20:
			return "", p.fail("a control character in a string")
		case char == utf8.RuneError && size == 1:
			return "", p.refuse(ReasonSurrogate, "a text that is not UTF-8")
		case char != '\\':
			out.WriteRune(char)
			p.at += size
			continue
		}
		decoded, err := p.escape()
		if err != nil {
			return "", err
		}
		out.WriteRune(decoded)
	}
	return "", p.fail("a string does not end")
}

func (p *parser) escape() (rune, error) {
	if p.at+1 >= len(p.in) {
		return 0, p.fail("a string does not end")
	}
	char := p.in[p.at+1]
	if at := strings.IndexByte(`"\/bfnrt`, char); at >= 0 {
		p.at += 2
		return rune("\"\\/\b\f\n\r\t"[at]), nil
	}
	unit, ok := p.hexUnit()
	if !ok {
		return 0, p.fail("an unknown escape")
	}
	if unit < 0xd800 || unit > 0xdfff {
		return unit, nil
	}
	low, ok := p.hexUnit()
	if unit > 0xdbff || !ok || low < 0xdc00 || low > 0xdfff {
		return 0, p.refuse(ReasonSurrogate, "half of a surrogate pair")
	}
	return 0x10000 + (unit-0xd800)<<10 + (low - 0xdc00), nil
}

// hexUnit reads one escape of the form \u0041.
func (p *parser) hexUnit() (rune, bool) {
	if p.at+6 > len(p.in) || p.in[p.at] != '\\' || p.in[p.at+1] != 'u' {
		return 0, false
	}
	for _, char := range []byte(p.in[p.at+2 : p.at+6]) {
		if !isHex(char) {
			return 0, false
		}
	}
	unit, err := strconv.ParseUint(p.in[p.at+2:p.at+6], 16, 16)
	p.at += 6
	return rune(unit), err == nil
}

func (p *parser) number() (string, error) {
	end := p.at
	for end < len(p.in) && strings.IndexByte("+-.0123456789eE", p.in[end]) >= 0 {
		end++
	}
	literal := p.in[p.at:end]
	number, ok := parseNumber(literal, false)
	if !ok {
		return "", p.fail("no value")
	}
	p.at = end
	p.hasValue = true
	double, err := strconv.ParseFloat(literal, 64)
	switch {
	case err != nil || math.IsInf(double, 0):
		return "", p.refuse(ReasonNotFinite, "a number larger than any double: send it as text")
	case number.digits == "":
		return "0", nil
	case double == 0:
		return "", p.refuse(ReasonNotFinite, "a number so small that it would become 0: send it as text")
	case isBeyond(literal) || math.Abs(double) >= 1<<53 && math.Abs(double) < 1e21:
		return "", p.refuse(ReasonIntegerTooLarge, "a number beyond 2^53 - 1, where digits get lost: send it as text")
	case len(number.digits) > 17:
		return "", p.refuse(ReasonTooLong, "a number of more than 17 significant digits: send it as text")
	}
	return ecmaNumber(double), nil
}

// isBeyond reports if the exact value is between 2^53 and 10^21: its double may be on the other side of a bound. The value is that of a finite double,
// so its exponent is small.
func isBeyond(literal string) bool {
	exact, ok := new(big.Rat).SetString(literal)
	if !ok {
		return true
	}
	exact.Abs(exact)
	beyond := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(21), nil))
	return exact.Cmp(new(big.Rat).SetInt64(1<<53)) >= 0 && exact.Cmp(beyond) < 0
}

// ecmaNumber writes a double as ECMAScript does.
func ecmaNumber(double float64) string {
	size := math.Abs(double)
	if size >= 1e-6 && size < 1e21 {
		return strconv.FormatFloat(double, 'f', -1, 64)
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(double, 'e', -1, 64), "e")
	return mantissa + "e" + exponent[:1] + strings.TrimLeft(exponent[1:], "0")
}

// decimalNumber is 0.d1d2d3… × 10^point, without leading and trailing zeros; zero has no digits.
type decimalNumber struct {
	negative bool
	digits   string
	point    int
}

// parseNumber reads a number in JSON's notation; with lenient, digits before or after the point may be missing, as decimals are written elsewhere.
func parseNumber(literal string, lenient bool) (decimalNumber, bool) {
	var number decimalNumber
	rest, negative := strings.CutPrefix(literal, "-")
	number.negative = negative
	mantissa := rest
	exponent := 0
	if at := strings.IndexAny(rest, "eE"); at >= 0 {
		mantissa = rest[:at]
		digits := strings.TrimLeft(rest[at+1:], "+-")
		if len(rest[at+1:])-len(digits) > 1 || !areDigits(digits) || digits == "" {
			return number, false
		}
		// Beyond this every number is too large or too small in the same way.
		exponent, _ = strconv.Atoi(strings.TrimLeft(digits, "0"))
		if len(strings.TrimLeft(digits, "0")) > 9 {
			exponent = 999_999_999
		}
		if rest[at+1] == '-' {
			exponent = -exponent
		}
	}
	whole, fraction, pointed := strings.Cut(mantissa, ".")
	if !areDigits(whole) || !areDigits(fraction) || whole+fraction == "" {
		return number, false
	}
	if !lenient && (whole == "" || pointed && fraction == "" || len(whole) > 1 && whole[0] == '0') {
		return number, false
	}
	digits := whole + fraction
	number.point = len(whole) + exponent
	trimmed := strings.TrimLeft(digits, "0")
	number.point -= len(digits) - len(trimmed)
	number.digits = strings.TrimRight(trimmed, "0")
	return number, true
}

func areDigits(text string) bool {
	for _, char := range []byte(text) {
		if char < '0' || char > '9' {
			return false
		}
	}
	return true
}
