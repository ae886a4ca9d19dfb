package oncegate

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Map is short for the usual contents: a record with written names.
type Map = map[string]any

// Decimal is a decimal number as text, such as "11.10" or "1E+3". Its canonical form is a JSON string in plain notation.
type Decimal string

// Date is a calendar date as text: "2026-11-22".
type Date string

// UUID is a UUID as text, in upper or lower case. Types named UUID that are 16 bytes (github.com/google/uuid) are accepted too.
type UUID string

// JSONText is contents that are JSON already. It is read as the gateway reads it (RFC 8785), numbers included.
type JSONText string

// Reasons of a NotCanonicalError.
const (
	ReasonEmpty           = "empty"
	ReasonFloat           = "float"
	ReasonIntegerTooLarge = "integer_too_large"
	ReasonNotFinite       = "not_finite"
	ReasonNoZone          = "no_zone"
	ReasonSurrogate       = "surrogate"
	ReasonTooDeep         = "too_deep"
	ReasonTooLong         = "too_long"
	ReasonKeyNotText      = "key_not_text"
	ReasonUnsupportedType = "unsupported_type"
	ReasonNotJSON         = "not_json"
)

const (
	depthMax        = 32
	decimalCharsMax = 128
	integerMax      = 1<<53 - 1
)

// GlobalID returns MD5 of app key, operation and canonical contents, in hex: the same operation has the same ID in every language.
func GlobalID(app, operation string, contents any) (string, error) {
	text, err := Canonical(contents)
	if err != nil {
		return "", err
	}
	return globalID(app, operation, text), nil
}

// Canonical returns the canonical form of contents (RFC 8785), or a *NotCanonicalError where others could read something else, or
// where the contents hold no value.
//
// Contents are strings, integers, booleans, nil, slices, maps with string keys, structs whose fields all have a `json` tag (options
// such as omitempty are ignored, and "-" leaves a field out), Decimal, time.Time, Date, UUID, JSONText and json.RawMessage.
func Canonical(contents any) (string, error) {
	text, value, err := canonical(contents)
	if err == nil && !value {
		err = refuse(ReasonEmpty, "$", `contents hold no value, only null, "", {} or []: pass the fields that distinguish this operation`)
	}
	if err != nil {
		return "", err
	}
	return text, nil
}

// CanonicalJSON returns JSON text in canonical form, as the gateway reads it, also text that holds no value.
func CanonicalJSON(text string) (string, error) {
	canonical, _, err := canonical(JSONText(text))
	return canonical, err
}

// canonical also accepts what holds no value, such as a fingerprint may be, and reports if there is one.
func canonical(contents any) (text string, hasValue bool, err error) {
	s := speller{path: []byte("$")}
	if err := s.any(reflect.ValueOf(contents), 0); err != nil {
		return "", false, err
	}
	return s.out.String(), s.hasValue, nil
}

func globalID(app, operation, text string) string {
	sum := md5.Sum([]byte(app + "\n" + operation + "\n" + text))
	return hex.EncodeToString(sum[:])
}

func refuse(reason, path, detail string) *NotCanonicalError {
	return &NotCanonicalError{Reason: reason, Path: path, Detail: detail}
}

// speller writes one value in canonical form.
type speller struct {
	out  strings.Builder
	path []byte
	// There is a number, a boolean or a string with a character in it: one unset ID must not name every order.
	hasValue bool
}

var (
	timeType      = reflect.TypeOf(time.Time{})
	bigIntType    = reflect.TypeOf(big.Int{})
	decimalType   = reflect.TypeOf(Decimal(""))
	dateType      = reflect.TypeOf(Date(""))
	uuidType      = reflect.TypeOf(UUID(""))
	jsonTextType  = reflect.TypeOf(JSONText(""))
	rawType       = reflect.TypeOf(json.RawMessage(nil))
	numberType    = reflect.TypeOf(json.Number(""))
	emptyType     = reflect.TypeOf(struct{}{})
	textOfUUIDLen = len("6f9619ff-8b86-d011-b42d-00c04fc964ff")
)

func (s *speller) refuse(reason, detail string) error {
	return refuse(reason, string(s.path), detail)
}

func (s *speller) any(v reflect.Value, depth int) error {
	for v.IsValid() && (v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer) {
		v = v.Elem()
	}
	if !v.IsValid() {
		s.out.WriteString("null")
		return nil
	}
	switch v.Type() {
	case timeType:
		return s.text(v.Interface().(time.Time).UTC().Format(time.RFC3339Nano))
	case bigIntType:
		integer := v.Interface().(big.Int)
		return s.integer(&integer)
	case decimalType:
		return s.decimal(v.String())
	case dateType:
		if _, err := time.Parse(time.DateOnly, v.String()); err != nil {
			return s.refuse(ReasonUnsupportedType, "not a date: write 2026-11-22")
		}
		return s.text(v.String())
	case uuidType:
		if !isUUID(v.String()) {
			return s.refuse(ReasonUnsupportedType, "not a UUID in 36 characters")
		}
		return s.text(strings.ToLower(v.String()))
	case jsonTextType:
		return s.jsonText(v.String(), depth)
	case rawType:
		return s.jsonText(string(v.Bytes()), depth)
	case numberType:
		integer, ok := new(big.Int).SetString(v.String(), 10)
		if !ok {
			return s.refuse(ReasonFloat, "not an integer: send integer minor units, a Decimal, or text")
		}
		return s.integer(integer)
	}
	switch v.Kind() {
	case reflect.String:
		return s.text(v.String())
	case reflect.Bool:
		s.hasValue = true
		s.out.WriteString(strconv.FormatBool(v.Bool()))
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return s.integer(big.NewInt(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return s.integer(new(big.Int).SetUint64(v.Uint()))
	case reflect.Float32, reflect.Float64:
		return s.refuse(ReasonFloat, "a binary float: send integer minor units, a Decimal, or text")
	case reflect.Array:
		if v.Type().Name() == "UUID" && v.Len() == 16 && v.Type().Elem().Kind() == reflect.Uint8 {
			return s.text(uuidOf(v))
		}
	case reflect.Map:
		if v.IsNil() {
			s.out.WriteString("null")
			return nil
		}
	case reflect.Slice:
		if v.IsNil() && v.Type().Elem().Kind() != reflect.Uint8 {
			s.out.WriteString("null")
			return nil
		}
	}
	return s.container(v, depth)
}

func (s *speller) container(v reflect.Value, depth int) error {
	var members []member
	switch v.Kind() {
	case reflect.Array, reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return s.refuse(ReasonUnsupportedType, "bytes: send them as text")
		}
		return s.list(v, depth)
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return s.refuse(ReasonKeyNotText, "a map whose keys are not strings")
		}
		if v.Type().Elem() == emptyType {
			return s.refuse(ReasonUnsupportedType, "a set: send a sorted slice")
		}
		for each := v.MapRange(); each.Next(); {
			members = append(members, member{each.Key().String(), each.Value()})
		}
	case reflect.Struct:
		var refused error
		if members, refused = s.fields(v); refused != nil {
			return refused
		}
	default:
		return s.refuse(ReasonUnsupportedType, fmt.Sprintf("a %s is not JSON: send it as text", v.Type()))
	}
	return s.object(members, depth)
}

type member struct {
	name  string
	value reflect.Value
}

// fields returns the members of a struct. Each field has its name written on it: a name that follows from the identifier would change with it.
func (s *speller) fields(v reflect.Value) ([]member, error) {
	var members []member
	for at := range v.NumField() {
		field := v.Type().Field(at)
		if !field.IsExported() && !field.Anonymous {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" || !field.IsExported() {
			detail := fmt.Sprintf("the field %s of %s has no written name: give it a `json` tag", field.Name, v.Type())
			return nil, s.refuse(ReasonUnsupportedType, detail)
		}
		members = append(members, member{name, v.Field(at)})
	}
	if len(members) == 0 && v.NumField() > 0 {
		return nil, s.refuse(ReasonUnsupportedType, fmt.Sprintf("a %s has no field with a `json` tag: send it as text", v.Type()))
	}
	return members, nil
}

func (s *speller) list(v reflect.Value, depth int) error {
	if depth == depthMax {
		return s.tooDeep()
	}
	s.out.WriteByte('[')
	for at := range v.Len() {
		if at > 0 {
			s.out.WriteByte(',')
		}
		length := s.enter("[" + strconv.Itoa(at) + "]")
		if err := s.any(v.Index(at), depth+1); err != nil {
			return err
		}
		s.path = s.path[:length]
	}
	s.out.WriteByte(']')
	return nil
}

func (s *speller) object(members []member, depth int) error {
	if depth == depthMax {
		return s.tooDeep()
	}
	sort.Slice(members, func(i, j int) bool { return lessUTF16(members[i].name, members[j].name) })
	s.out.WriteByte('{')
	for at, member := range members {
		if at > 0 {
			s.out.WriteByte(',')
		}
		if at > 0 && members[at-1].name == member.name {
			return s.refuse(ReasonUnsupportedType, fmt.Sprintf("the name %q occurs twice", member.name))
		}
		length := s.enter(step(member.name))
		if err := s.quote(member.name); err != nil {
			return err
		}
		s.out.WriteByte(':')
		if err := s.any(member.value, depth+1); err != nil {
			return err
		}
		s.path = s.path[:length]
	}
	s.out.WriteByte('}')
	return nil
}

func (s *speller) tooDeep() error {
	return s.refuse(ReasonTooDeep, fmt.Sprintf("nested deeper than %d levels: send it as text", depthMax))
}

// enter appends a step to the path, and returns the length to cut it to afterwards.
func (s *speller) enter(step string) int {
	length := len(s.path)
	s.path = append(s.path, step...)
	return length
}

func step(name string) string {
	for _, char := range name {
		if char != '_' && (char < '0' || char > '9') && (char < 'A' || char > 'Z') && (char < 'a' || char > 'z') {
			var quoted strings.Builder
			writeQuoted(&quoted, name)
			return "[" + quoted.String() + "]"
		}
	}
	if name == "" {
		return `[""]`
	}
	return "." + name
}

func (s *speller) text(text string) error {
	s.hasValue = s.hasValue || text != ""
	return s.quote(text)
}

func (s *speller) quote(text string) error {
	if !utf8.ValidString(text) {
		return s.refuse(ReasonSurrogate, "a text that is not UTF-8, such as half of a surrogate pair")
	}
	writeQuoted(&s.out, text)
	return nil
}

// writeQuoted writes a JSON string as ECMAScript does: only what must be escaped is.
func writeQuoted(out *strings.Builder, text string) {
	const short = "btn.fr"
	out.WriteByte('"')
	for _, char := range text {
		switch {
		case char == '"' || char == '\\':
			out.WriteByte('\\')
			out.WriteRune(char)
		case char >= 0x08 && char <= 0x0d && char != 0x0b:
			out.WriteByte('\\')
			out.WriteByte(short[char-0x08])
		case char < 0x20:
			fmt.Fprintf(out, `\u%04x`, char)
		default:
			out.WriteRune(char)
		}
	}
	out.WriteByte('"')
}

func (s *speller) integer(integer *big.Int) error {
	if new(big.Int).Abs(integer).Cmp(big.NewInt(integerMax)) > 0 {
		return s.refuse(ReasonIntegerTooLarge, "an integer of 2^53 or more: send it as text")
	}
	s.hasValue = true
	s.out.WriteString(integer.String())
	return nil
}

// decimal writes a decimal in plain notation, without trailing zeros.
func (s *speller) decimal(literal string) error {
	switch strings.ToLower(strings.TrimLeft(literal, "+-")) {
	case "nan", "snan", "inf", "infinity":
		return s.refuse(ReasonNotFinite, "a decimal that is not a finite number")
	}
	number, ok := parseNumber(strings.TrimPrefix(literal, "+"), true)
	if !ok {
		return s.refuse(ReasonUnsupportedType, fmt.Sprintf("%.40q is not a decimal: write 11.10 or 1E+3", literal))
	}
	if number.digits == "" {
		return s.text("0")
	}
	if len(number.digits)+max(number.point, -number.point) > 2*decimalCharsMax {
		return s.tooLong()
	}
	var text string
	switch length := len(number.digits); {
	case number.point <= 0:
		text = "0." + strings.Repeat("0", -number.point) + number.digits
	case number.point >= length:
		text = number.digits + strings.Repeat("0", number.point-length)
	default:
		text = number.digits[:number.point] + "." + number.digits[number.point:]
	}
	if number.negative {
		text = "-" + text
	}
	if len(text) > decimalCharsMax {
		return s.tooLong()
	}
	return s.text(text)
}

func (s *speller) tooLong() error {
	return s.refuse(ReasonTooLong, fmt.Sprintf("a decimal of more than %d characters: send it as text", decimalCharsMax))
}

func isUUID(text string) bool {
	if len(text) != textOfUUIDLen {
		return false
	}
	for at, char := range []byte(text) {
		if at == 8 || at == 13 || at == 18 || at == 23 {
			if char != '-' {
				return false
			}
		} else if !isHex(char) {
			return false
		}
	}
	return true
}

func uuidOf(v reflect.Value) string {
	var bytes [16]byte
	for at := range bytes {
		bytes[at] = byte(v.Index(at).Uint())
	}
	text := hex.EncodeToString(bytes[:])
	return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
}

func isHex(char byte) bool {
	return char >= '0' && char <= '9' || char >= 'a' && char <= 'f' || char >= 'A' && char <= 'F'
}

// lessUTF16 compares by UTF-16 code units, as RFC 8785 requires, which is not the order of Go's strings.
func lessUTF16(a, b string) bool {
	for a != "" && b != "" {
		first, size := utf8.DecodeRuneInString(a)
		second, other := utf8.DecodeRuneInString(b)
		if first != second {
			return unit(first) < unit(second) || unit(first) == unit(second) && first < second
		}
		a, b = a[size:], b[other:]
	}
	return len(a) < len(b)
}

func unit(char rune) rune {
	if high, _ := utf16.EncodeRune(char); high != utf8.RuneError {
		return high
	}
	return char
}
