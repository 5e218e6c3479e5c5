package dlq

import "strings"

const (
	redacted    = "[redacted]"
	spaces      = " \t\r\n\v\f"
	quotes      = "\"'`"
	maxURL      = 4 << 10   // how far the @ of a URL is looked for
	punctuation = ").,;:>}" // that ends a sentence or clause, not a secret
)

// Redact replaces what looks like a secret in text by "[redacted]":
//
//   - the value after a name that ends in password, secret, token, key,
//     authorization, cookie, session and the like, as in password=hunter2,
//     "api_key": "…" or X-Auth-Token: …
//   - what follows Bearer and Basic
//   - user and password in a URL or a data source name, as in
//     postgres://app:hunter2@db/orders
//   - AWS keys, JSON Web Tokens and tokens with a well-known prefix
//   - payment card numbers: 13 to 19 digits with a valid check digit
//
// It rather takes a word too many than one too few, and still cannot know every
// secret. What it leaves is unchanged, and redacting twice is redacting once.
func Redact(text string) string {
	r := redactor{text: text}
	for i := 0; i < len(text); {
		i = r.step(i)
	}
	if r.out == nil {
		return text
	}
	return string(append(r.out, text[r.done:]...))
}

// redactor copies text to out and leaves out spans.
type redactor struct {
	text  string
	out   []byte
	done  int  // what is copied or left out
	token int  // start of the current run without spaces and quotes
	colon bool // there is a colon in it
}

// step looks at what begins at i and returns where to go on.
func (r *redactor) step(i int) int {
	switch c := r.text[i]; {
	case isWord(c):
		return r.word(i)
	case strings.HasPrefix(r.text[i:], "://"):
		return r.url(i + 3)
	case c == ':':
		r.colon = true
	case c == '@' && r.colon && i > r.token:
		r.drop(r.token, i)
	case isSpace(c) || isQuote(c):
		r.token, r.colon = i+1, false
	}
	return i + 1
}

// drop leaves out text[from:to], and returns to.
func (r *redactor) drop(from, to int) int {
	if from = max(from, r.done); from < to {
		r.out = append(append(r.out, r.text[r.done:from]...), redacted...)
		r.done, r.token, r.colon = to, to, false
	}
	return to
}

// word handles a word that begins at i.
func (r *redactor) word(i int) int {
	end := i
	for end < len(r.text) && isWord(r.text[end]) {
		if isDigit(r.text[end]) && (end == i || !isDigit(r.text[end-1])) {
			if n := card(r.text[end:]); n > 0 {
				return r.drop(end, end+n)
			}
		}
		end++
	}
	word := r.text[i:end]
	if to := wellKnown(r.text, i, end); to > i {
		return r.drop(i, to)
	}
	if from, to := r.value(word, end); from < to {
		return r.drop(from, to)
	}
	return end
}

// value returns the span of the secret that word, which ends at end,
// announces; it is empty if there is none.
func (r *redactor) value(word string, end int) (from, to int) {
	if end == len(r.text) {
		return 0, 0
	}
	switch next := r.text[end]; {
	case next == '=' || next == ':' || next == '\\' || isQuote(next):
	case isSpace(next):
		if scheme := schemeOf(word); scheme != noScheme {
			return r.credentials(scheme, end)
		}
	default:
		return 0, 0
	}
	secrecy := secrecyOf(word)
	if secrecy == public {
		return 0, 0
	}
	from, sign, opening := r.assignment(end)
	if sign == 0 {
		return r.bare(secrecy, end)
	}
	if secrecy == key && sign == ':' {
		return 0, 0
	}
	to = r.valueEnd(word, from, opening)
	if opening != "" {
		return from, to
	}
	value := strings.TrimRight(r.text[from:to], punctuation)
	if secrecy == weak && sign == ':' && isLower(value) {
		return 0, 0
	}
	return from, from + len(value)
}

// assignment reads "=" or ":" after a name, with spaces and quotes around it:
// the closing quote of the name before it, the opening one of the value, which
// may be escaped, after it. It returns where the value begins; sign is 0 if
// there is none.
func (r *redactor) assignment(i int) (from int, sign byte, opening string) {
	i += len(r.text[i:]) - len(strings.TrimLeft(r.text[i:], spaces+quotes+`\`))
	if i == len(r.text) || r.text[i] != '=' && r.text[i] != ':' {
		return i, 0, ""
	}
	sign = r.text[i]
	i += len(r.text[i:]) - len(strings.TrimLeft(r.text[i:], spaces+"=:>"))
	for i < len(r.text) && strings.IndexByte("[({<", r.text[i]) >= 0 && !strings.HasPrefix(r.text[i:], redacted) {
		i++
	}
	value := r.text[i:]
	if q := len(value) - len(strings.TrimLeft(value, `\`)); q < len(value) && isQuote(value[q]) {
		return i + q + 1, sign, value[:q+1]
	}
	return i, sign, ""
}

// valueEnd returns where the value at from ends: at the quote that closes it,
// or at the end of the word, which takes what follows a scheme along.
func (r *redactor) valueEnd(word string, from int, opening string) int {
	rest := r.text[from:]
	if opening != "" {
		quote := opening[len(opening)-1]
		for i := range len(rest) {
			if rest[i] == quote && (i > 0 && rest[i-1] == '\\') == (len(opening) > 1) {
				return from + i - len(opening) + 1
			}
		}
		return len(r.text)
	}
	if n := len(word) - len("cookie"); n >= 0 && strings.EqualFold(word[n:], "cookie") {
		return from + spanUntil(rest, "\r\n\"'`")
	}
	end := wordEnd(rest)
	if schemeOf(strings.TrimRight(rest[:end], ":")) != noScheme || strings.HasSuffix(strings.ToUpper(rest[:end]), "-SHA256") {
		for end < len(rest) && rest[end] == ' ' {
			end++
		}
		end += wordEnd(rest[end:])
	}
	return from + end
}

// bare handles "password hunter2": a name and, without a sign between them,
// something that is no word.
func (r *redactor) bare(secrecy secrecy, end int) (from, to int) {
	from = end + 1
	if !isSpace(r.text[end]) || secrecy == key || from >= len(r.text) || !isWord(r.text[from]) {
		return 0, 0
	}
	to = from + wordEnd(r.text[from:])
	to = from + len(strings.TrimRight(r.text[from:to], punctuation))
	if value := r.text[from:to]; len(value) < 6 || !strings.ContainsAny(value, "0123456789") {
		return 0, 0
	}
	return from, to
}

// credentials handles what follows "Bearer" and "Basic".
func (r *redactor) credentials(s scheme, end int) (from, to int) {
	for end < len(r.text) && isSpace(r.text[end]) {
		end++
	}
	to = end + wordEnd(r.text[end:])
	value := strings.TrimRight(r.text[end:to], punctuation)
	if value == "" || s == basic && isLower(value) {
		return 0, 0
	}
	switch strings.ToLower(value) {
	case "auth", "authentication", "authorization", "token", "tokens", "scheme", "realm", "credentials", "access", "header",
		"error", "is", "was", "not", "and", "or":
		return 0, 0
	}
	if strings.HasPrefix(value, "realm=") { // of a WWW-Authenticate header
		return 0, 0
	}
	return end, end + len(value)
}

// url takes user and password out of a URL whose authority begins at i.
func (r *redactor) url(i int) int {
	rest := r.text[i:min(len(r.text), i+maxURL)]
	token := rest[:spanUntil(rest, spaces+quotes+"<>")]
	authority := token[:spanUntil(token, "/?#")]
	at := strings.LastIndexByte(authority, '@')
	if at < 0 && !isHostPort(authority) {
		at = strings.LastIndexByte(token, '@') // a password with a slash in it
	}
	if at <= 0 {
		r.token, r.colon = i+len(authority), false
		return r.token
	}
	return r.drop(i, i+at)
}

// isHostPort reports whether s may be a host with or without a port.
func isHostPort(s string) bool {
	if strings.HasPrefix(s, "[") {
		return true
	}
	_, port, _ := strings.Cut(s, ":")
	return strings.Trim(port, "0123456789") == ""
}

// wordEnd returns how far s goes without spaces and quotes.
func wordEnd(s string) int { return spanUntil(s, spaces+quotes) }

func spanUntil(s, stops string) int {
	if n := strings.IndexAny(s, stops); n >= 0 {
		return n
	}
	return len(s)
}

func lower(c byte) byte {
	if isUpper(c) {
		c |= 0x20
	}
	return c
}

// isWord takes "-" and "_" along, as in X-Api-Key.
func isWord(c byte) bool { return isAlnum(c) || c == '-' || c == '_' }

func isQuote(c byte) bool { return c == '"' || c == '\'' || c == '`' }

func isLower(s string) bool {
	for i := range len(s) {
		if s[i] < 'a' || s[i] > 'z' {
			return false
		}
	}
	return true
}
