package dlq

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
)

const (
	maskByte  = '#'
	maxMasked = 512 // bytes of the masked text that count
)

// fingerprint groups equal faults: it is 16 hexadecimal digits made of the type
// and the code of an error, and of its text with everything masked that differs
// from message to message: numbers, durations and times, hexadecimal and random
// ids, UUIDs, quoted strings, e-mail and network addresses, ports, and what
// [Redact] took out. Numbers stay where they are a code, as in "status 503" or
// "SQLSTATE 23505". The first 512 bytes of the masked text count.
//
// It is a pure function of its arguments. A later version of this package may
// mask better, and then gives other fingerprints.
func fingerprint(errorType, code, text string) string {
	room := rooms.Get().(*[]byte)
	m := masker{text: text, out: (*room)[:0]}
	m.out = append(append(m.out, errorType...), 0)
	m.out = append(append(m.out, code...), 0)
	m.end = len(m.out) + maxMasked
	m.token = len(m.out)
	m.run()
	sum := sha256.Sum256(m.out[:min(len(m.out), m.end)])
	rooms.Put(room)
	return hex.EncodeToString(sum[:8])
}

// rooms are for masked texts: failures that come in masses need none of their own.
var rooms = sync.Pool{New: func() any { return new(make([]byte, 0, 1<<10)) }}

// masker copies text to out and writes one '#' for what differs from message
// to message, also for a row of such things, like the parts of a date.
type masker struct {
	text     string
	out      []byte
	end      int        // of what counts
	pending  int        // start in text of the separators that are not written yet
	masked   bool       // out ends in a mask
	token    int        // start in out of what may be the name in an e-mail address
	word     string     // the last word written
	unclosed [3][2]bool // quotes that do not close from here on: kind, escaped
}

func (m *masker) run() {
	for i := 0; i < len(m.text) && len(m.out) < m.end; {
		switch c := m.text[i]; {
		case isAlnum(c):
			i = m.segment(i)
		case c == '"' || c == '\'' || c == '`':
			i = m.quote(i)
		case c == '[':
			i = m.bracket(i)
		case c == ':':
			i = m.colon(i)
		case c == '@':
			i = m.email(i)
		default:
			i++
		}
	}
	if m.pending < len(m.text) {
		m.separate(m.text[m.pending:])
	}
}

// segment handles letters and digits from i, and returns where they end.
func (m *masker) segment(i int) int {
	if isUUID(m.text[i:]) {
		return m.mask(i, i+36)
	}
	end := i + 1
	for end < len(m.text) && isAlnum(m.text[end]) {
		end++
	}
	if end < len(m.text) && m.text[end] == ':' {
		if n := ipv6(m.text[i:]); n > 0 {
			return m.mask(i, i+n)
		}
	}
	segment := m.text[i:end]
	if m.isCode(i, segment) {
		return m.write(i, end)
	}
	switch keep := stable(segment, i > 0 && m.text[i-1] == '_'); {
	case keep == 0 || isDateWord(segment, m.text[end:]):
		return m.mask(i, end)
	case keep == len(segment):
		return m.write(i, end)
	default:
		m.write(i, i+keep)
		return m.mask(i+keep, end)
	}
}

// write copies text[i:end], with the separators before it.
func (m *masker) write(i, end int) int {
	m.separate(m.text[m.pending:i])
	m.word = m.text[i:end]
	m.out = append(m.out, m.word...)
	m.masked, m.pending = false, end
	return end
}

// mask writes a mask for text[i:end] unless the last one reaches that far.
func (m *masker) mask(i, end int) int {
	between := m.text[m.pending:i]
	if n := len(between); n > 0 && (between[n-1] == '-' || between[n-1] == '+') && (n > 1 || m.pending == 0) {
		between = between[:n-1] // a sign
	}
	if m.masked && isJoint(between) {
		m.token = len(m.out)
	} else {
		m.separate(between)
		m.out = append(m.out, maskByte)
	}
	m.masked, m.pending, m.word = true, end, ""
	return end
}

// separate copies separators, any white space as one space.
func (m *masker) separate(between string) {
	if between == "" {
		return
	}
	inName := true
	for i := 0; i < len(between) && len(m.out) < m.end; i++ {
		c := between[i]
		inName = inName && strings.IndexByte("._+-%", c) >= 0
		if isSpace(c) {
			if i > 0 && isSpace(between[i-1]) {
				continue
			}
			c = ' '
		}
		m.out = append(m.out, c)
	}
	if !inName {
		m.token = len(m.out)
	}
}

// quote masks the quoted string that opens at i, if it closes. Keys of JSON
// objects are names rather than values, and stay.
func (m *masker) quote(i int) int {
	end := m.closing(i)
	if end < 0 {
		return i + 1
	}
	quoted := m.text[i+1 : end]
	if strings.HasPrefix(strings.TrimLeft(m.text[end+1:min(len(m.text), end+4)], " "), ":") && isName(quoted) {
		if before := strings.TrimRight(m.text[max(0, i-4):i], " \\"); strings.HasSuffix(before, "{") || strings.HasSuffix(before, ",") {
			m.write(i, i) // the separators, without the quotes
			m.pending = i + 1
			m.write(i+1, end)
			m.pending = end + 1
			return m.pending
		}
	}
	return m.mask(i, end+1)
}

func (m *masker) closing(i int) int {
	q := m.text[i]
	if q == '\'' && i > 0 && isAlnum(m.text[i-1]) {
		return -1 // an apostrophe
	}
	kind, escaped := strings.IndexByte("\"'`", q), 0
	if i > 0 && m.text[i-1] == '\\' {
		escaped = 1
	}
	if m.unclosed[kind][escaped] {
		return -1
	}
	for j := i + 1; j < len(m.text); j++ {
		if m.text[j] != q || (m.text[j-1] == '\\') != (escaped == 1) {
			continue
		}
		if q == '\'' && j+1 < len(m.text) && isAlnum(m.text[j+1]) {
			continue
		}
		return j
	}
	m.unclosed[kind][escaped] = true
	return -1
}

// bracket masks an IPv6 address, or the mark of [Redact], at i.
func (m *masker) bracket(i int) int {
	rest := m.text[i:]
	if strings.HasPrefix(rest, redacted) {
		return m.mask(i, i+len(redacted))
	}
	if n := ipv6(rest[1:]); n > 0 && n+1 < len(rest) && rest[n+1] == ']' {
		return m.mask(i, i+n+2)
	}
	return i + 1
}

// colon masks an IPv6 address that begins with "::".
func (m *masker) colon(i int) int {
	if i > 0 && isAlnum(m.text[i-1]) {
		return i + 1
	}
	if n := ipv6(m.text[i:]); n > 2 {
		return m.mask(i, i+n)
	}
	return i + 1
}

// email masks the address around the "@" at i.
func (m *masker) email(i int) int {
	if m.pending != i || m.token == len(m.out) || i+1 == len(m.text) || !isAlnum(m.text[i+1]) {
		return i + 1
	}
	end := i + 2
	for end < len(m.text) && (isAlnum(m.text[end]) || m.text[end] == '-' || m.text[end] == '.' && end+1 < len(m.text) && isAlnum(m.text[end+1])) {
		end++
	}
	m.out = append(m.out[:m.token], maskByte)
	m.masked, m.pending, m.word = true, end, ""
	return end
}

// isCode reports whether the segment at i is a code because of the word
// before it: "status 503", "exit status 1", "SQLSTATE 23505".
func (m *masker) isCode(i int, segment string) bool {
	sqlState := len(segment) == 5 && strings.EqualFold(m.word, "sqlstate")
	if !sqlState && (len(segment) > 3 || !isDigit(segment[0])) || i == m.pending || m.word == "" {
		return false
	}
	if strings.Trim(m.text[m.pending:i], " =:(") != "" {
		return false
	}
	if sqlState {
		return true
	}
	if strings.Trim(segment, "0123456789") != "" {
		return false
	}
	for _, name := range [...]string{"status", "code", "http", "errno", "exit", "signal"} {
		if n := len(m.word) - len(name); n >= 0 && strings.EqualFold(m.word[n:], name) {
			return true
		}
	}
	return false
}

// stable returns how many leading bytes of a segment are the same from
// message to message: all of a word, the letters of "shard7", nothing of a
// number, "9f86d0" or "1J2k3L". After an underscore, mixed case tells an id.
func stable(segment string, afterUnderscore bool) int {
	var digits, changes, humps int
	hex, letters := true, 0
	for i := range len(segment) {
		c := segment[i]
		digit := isDigit(c)
		if digit {
			digits++
		} else if digits == 0 {
			letters = i + 1
		}
		hex = hex && isHex(c)
		if i > 0 {
			before := segment[i-1]
			if digit != isDigit(before) {
				changes++
			}
			if isUpper(c) && 'a' <= before && before <= 'z' {
				humps++
			}
		}
	}
	switch {
	case digits == 0 && len(segment) >= 8 && (humps >= 3 && len(segment) < 5*humps || humps > 0 && afterUnderscore):
		return 0
	case digits == 0:
		return len(segment)
	case hex || changes > 1:
		return 0
	}
	return letters
}

// isJoint reports whether s, between two masks, makes one thing of them.
func isJoint(s string) bool {
	joints := 0
	for i := range len(s) {
		switch {
		case isSpace(s[i]):
		case strings.IndexByte(".,:;-/+_|", s[i]) >= 0:
			joints++
		default:
			return false
		}
	}
	return joints <= 1
}

// isDateWord reports whether word is a weekday or month before a number.
func isDateWord(word, rest string) bool {
	if len(word) != 3 || !isUpper(word[0]) {
		return false
	}
	switch word {
	case "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Jan", "Feb", "Mar", "Apr", "May", "Jun",
		"Jul", "Aug", "Sep", "Oct", "Nov", "Dec":
		rest = strings.TrimLeft(strings.TrimPrefix(rest, ","), " -")
		return rest != "" && isDigit(rest[0])
	}
	return false
}

// ipv6 returns the length of the IPv6 address, with its zone, that s begins
// with, or 0.
func ipv6(s string) int {
	n, colons := 0, 0
	for n < len(s) && n < 46 && (isHex(s[n]) || s[n] == ':' || s[n] == '.') {
		if s[n] == ':' {
			colons++
		}
		n++
	}
	for n > 0 && s[n-1] == ':' && !strings.HasSuffix(s[:n], "::") || n > 0 && s[n-1] == '.' {
		if s[n-1] == ':' {
			colons--
		}
		n--
	}
	if colons < 2 || n < 3 || n < len(s) && isAlnum(s[n]) || colons != 7 && !strings.Contains(s[:n], "::") {
		return 0
	}
	if n < len(s) && s[n] == '%' {
		for n++; n < len(s) && isAlnum(s[n]); n++ {
		}
	}
	return n
}

func isUUID(s string) bool {
	if len(s) < 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' || len(s) > 36 && isAlnum(s[36]) {
		return false
	}
	for i := range 36 {
		if s[i] != '-' && !isHex(s[i]) {
			return false
		}
	}
	return true
}

// isName reports whether s is made of letters and underscores.
func isName(s string) bool {
	for i := range len(s) {
		if s[i] != '_' && (!isAlnum(s[i]) || isDigit(s[i])) {
			return false
		}
	}
	return s != ""
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
func isHex(c byte) bool   { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
func isSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// isAlnum takes every byte of a character beyond ASCII for a letter.
func isAlnum(c byte) bool {
	return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'z' || c >= 0x80
}
