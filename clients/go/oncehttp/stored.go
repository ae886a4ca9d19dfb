package oncehttp

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	storedVersion = 1
	// Bytes of the fields of a head, of those of trailers, and of a field of a tombstone.
	fieldsBytesMax = 32 << 10
	// Before the names of trailers.
	trailerMark = ":"
)

var tombstoneFields = []string{"location", "etag"}

// storedResponse is what repeats get: the form of the gateway's proxy, in every language. Without a body it is a tombstone, the rest of a response that
// was not stored.
type storedResponse struct {
	V      int   `json:"v"`
	Status int   `json:"status"`
	At     int64 `json:"at"`
	// Names in lower case and values. Each character of a value is one byte.
	Fields [][2]string `json:"fields"`
	// In Base64.
	Body *string `json:"body,omitempty"`
}

// Omitted returns the tombstone, which is stored where the gateway takes no result of this length.
func (s *storedResponse) Omitted(string) any { return s.tombstone() }

func (s *storedResponse) tombstone() *storedResponse {
	rest := &storedResponse{V: s.V, Status: s.Status, At: s.At, Fields: [][2]string{}}
	for _, field := range s.Fields {
		for _, name := range tombstoneFields {
			if field[0] == name && len(field[1]) <= fieldsBytesMax {
				rest.Fields = append(rest.Fields, field)
			}
		}
	}
	return rest
}

// newStoredResponse returns the stored form; a tombstone without a body, or if the fields of the head or of the trailers are too long.
func newStoredResponse(status int, fields, trailers [][2]string, body []byte, hasBody bool) *storedResponse {
	stored := &storedResponse{V: storedVersion, Status: status, At: time.Now().Unix(), Fields: [][2]string{}}
	for _, field := range fields {
		stored.Fields = append(stored.Fields, [2]string{field[0], latin1(field[1])})
	}
	for _, field := range trailers {
		stored.Fields = append(stored.Fields, [2]string{trailerMark + field[0], latin1(field[1])})
	}
	if !hasBody || bytesOf(fields) > fieldsBytesMax || bytesOf(trailers) > fieldsBytesMax {
		return stored.tombstone()
	}
	text := base64.StdEncoding.EncodeToString(body)
	stored.Body = &text
	return stored
}

func bytesOf(fields [][2]string) int {
	length := 0
	for _, field := range fields {
		length += len(field[0]) + len(field[1])
	}
	return length
}

// readStored returns a stored response, or nil if this is none.
func readStored(result json.RawMessage) *storedResponse {
	var stored storedResponse
	if len(result) == 0 || json.Unmarshal(result, &stored) != nil || stored.V != storedVersion || stored.Status < 200 || stored.Status > 599 {
		return nil
	}
	return &stored
}

// body returns the stored body; false for a tombstone.
func (s *storedResponse) body() ([]byte, bool) {
	if s.Body == nil {
		return nil, false
	}
	body, err := base64.StdEncoding.DecodeString(*s.Body)
	return body, err == nil
}

// header returns the stored fields, or the trailers, filtered as those of a handler: the store is not believed more.
func (s *storedResponse) header(fields *storedFields, trailers bool) http.Header {
	all := http.Header{}
	for _, field := range s.Fields {
		name, isTrailer := strings.CutPrefix(field[0], trailerMark)
		if value, ok := fromLatin1(field[1]); ok && isTrailer == trailers && isFieldName(name) && isFieldValue(value) {
			all.Add(name, value)
		}
	}
	kept := http.Header{}
	for _, field := range fields.of(all) {
		kept.Add(field[0], field[1])
	}
	return kept
}

// replay sends a stored response to a repeat. It reports false if there is none to send.
func (s *storedResponse) replay(w http.ResponseWriter, r *http.Request, fields *storedFields) bool {
	body, ok := s.body()
	if !ok {
		return false
	}
	header := w.Header()
	for name, lines := range s.header(fields, false) {
		header[name] = lines
	}
	if _, ok := header["Content-Type"]; !ok {
		// The handler has sent none, and net/http would guess one.
		header["Content-Type"] = nil
	}
	age := max(0, time.Now().Unix()-s.At)
	if earlier, err := strconv.ParseInt(header.Get("Age"), 10, 64); err == nil && earlier > 0 {
		age += earlier
	}
	header.Set("Age", strconv.FormatInt(age, 10))
	header.Set(replayedHeader, "true")
	trailers := s.header(fields, true)
	if !has(r.Header["Te"], "trailers") {
		trailers = nil
	}
	for name := range trailers {
		header.Add("Trailer", name)
	}
	if len(trailers) == 0 && bodyAllowed(s.Status) {
		header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(s.Status)
	if len(trailers) > 0 {
		// Otherwise HTTP/2 declares the length of a short body, and a proxy behind it has no place for trailers.
		_ = http.NewResponseController(w).Flush()
	}
	if bodyAllowed(s.Status) {
		_, _ = w.Write(body)
	}
	for name, lines := range trailers {
		header[name] = lines
	}
	return true
}

func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusResetContent && status != http.StatusNotModified
}

// latin1 returns a text of the bytes of a value, one character each.
func latin1(value string) string {
	runes := make([]rune, len(value))
	for at := range len(value) {
		runes[at] = rune(value[at])
	}
	return string(runes)
}

func fromLatin1(text string) (string, bool) {
	bytes := make([]byte, 0, len(text))
	for _, char := range text {
		if char > 0xff {
			return "", false
		}
		bytes = append(bytes, byte(char))
	}
	return string(bytes), true
}

// isFieldValue excludes line breaks and other control characters.
func isFieldValue(value string) bool {
	for _, char := range []byte(value) {
		if char < ' ' && char != '\t' || char == 0x7f {
			return false
		}
	}
	return true
}
