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
//     "api_key": "…", X-Auth-Token: …, --password … or <password>…</password>;
//     of an object or array all that is in it
//   - what follows Bearer and Basic, and the header Authorization with any scheme
//   - user and password in a URL, a data source name or a call of curl, as in
//     postgres://app:hunter2@db/orders, and the path of a webhook of Slack and
//     others
//   - private keys in PEM, AWS keys, JSON Web Tokens and tokens with a well-known
//     prefix
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
	if strings.HasPrefix(r.text[i:], pemBegin) {
		return r.pem(i + len(pemBegin))
	}
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
	case next == '>':
		return r.element(word, end)
	case isSpace(next):
		if scheme := schemeOf(word); scheme != noScheme {
			return r.credentials(scheme, end)
		}
		if word == "-u" || strings.HasSuffix(word, "-user") {
			return r.login(end)
		}
	default:
		return 0, 0
	}
	secrecy := secrecyOf(word)
	if secrecy == public {
		return r.code(word, end)
	}
	from, sign, opening := r.assignment(end)
	if sign == 0 {
		return r.bare(word, secrecy, end)
	}
	if secrecy == key && sign == ':' {
		return 0, 0
	}
	if opening == "" && (secrecy == secret || sign == '=') && from < len(r.text) && isOpening(r.text[from]) {
		return r.inside(from)
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
	if n := len(word) - len("authorization"); n >= 0 && strings.EqualFold(word[n:], "authorization") {
		return from + authorizationEnd(rest)
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

// authorizationEnd returns where the value of a header Authorization ends: the
// scheme, what follows it, and as much as commas join.
func authorizationEnd(rest string) int {
	end := wordEnd(rest)
	if end == 0 || end == len(rest) || rest[end] != ' ' || !isScheme(strings.TrimRight(rest[:end], ":")) {
		return end
	}
	for {
		for end < len(rest) && rest[end] == ' ' {
			end++
		}
		from := end
		end += parameterEnd(rest[end:])
		if end == from || rest[end-1] != ',' {
			return end
		}
	}
}

// parameterEnd returns where a word ends that may have a quoted value, as
// username="bob" has.
func parameterEnd(s string) int {
	end := wordEnd(s)
	if end == 0 || end == len(s) || s[end-1] != '=' || !isQuote(s[end]) {
		return end
	}
	quoted := strings.IndexByte(s[end+1:], s[end])
	if quoted < 0 {
		return len(s)
	}
	end += 1 + quoted + 1
	if end < len(s) && s[end] == ',' {
		end++
	}
	return end
}

// isScheme reports whether a word may be the scheme of an Authorization header.
func isScheme(word string) bool {
	if word == "" || len(word) > 24 || !isAlnum(word[0]) || isDigit(word[0]) {
		return false
	}
	for i := range len(word) {
		if !isAlnum(word[i]) && word[i] != '-' {
			return false
		}
	}
	return true
}

// inside handles a value in brackets, the first of which is at i: an object or
// an array, or a word that begins with one.
func (r *redactor) inside(i int) (from, to int) {
	if after, ok := strings.CutPrefix(r.text[i:], redacted); ok && strings.Trim(after[:wordEnd(after)], punctuation+"]") == "" {
		return 0, 0
	}
	from, depth := i+1, 0
	for to = i; to < len(r.text); to++ {
		switch c := r.text[to]; {
		case isOpening(c):
			depth++
		case strings.IndexByte("])}>", c) >= 0:
			depth--
		}
		if depth == 0 {
			break
		}
	}
	if to == len(r.text) {
		return from, to
	}
	rest := strings.TrimRight(r.text[to+1:to+1+wordEnd(r.text[to+1:])], punctuation+"]")
	if rest != "" {
		return i, to + 1 + len(rest)
	}
	return from, to
}

func isOpening(c byte) bool { return strings.IndexByte("[({<", c) >= 0 }

const pemBegin = "-----BEGIN "

// pem handles what is between the lines that begin and end a private key, whose
// label begins at i.
func (r *redactor) pem(i int) int {
	const maxLabel = 100
	rest := r.text[i:min(len(r.text), i+maxLabel)]
	n := strings.Index(rest, "-----")
	if n < 0 || !strings.Contains(rest[:n], "PRIVATE KEY") {
		return i
	}
	from := i + n + len("-----")
	to := strings.Index(r.text[from:], "-----END")
	if to < 0 {
		return r.drop(from, len(r.text))
	}
	return r.drop(from, from+to)
}

// element handles <password>hunter2</password>.
func (r *redactor) element(word string, end int) (from, to int) {
	if start := end - len(word); start == 0 || r.text[start-1] != '<' || secrecyOf(word) < weak {
		return 0, 0
	}
	from = end + 1
	return from, from + spanUntil(r.text[from:], "<")
}

// login handles -u user:password, of curl and others.
func (r *redactor) login(end int) (from, to int) {
	from = end + 1
	if from < len(r.text) && isQuote(r.text[from]) {
		from++
	}
	to = from + wordEnd(r.text[from:])
	if value := r.text[from:to]; strings.IndexByte(value, ':') <= 0 || strings.Contains(value, "://") {
		return 0, 0
	}
	return from, to
}

// code handles ?code=… and &code=…, by which OAuth hands out tokens.
func (r *redactor) code(word string, end int) (from, to int) {
	const shortest = 10
	start := end - len(word)
	if word != "code" || r.text[end] != '=' || start == 0 || r.text[start-1] != '?' && r.text[start-1] != '&' {
		return 0, 0
	}
	from = end + 1
	to = from + spanUntil(r.text[from:], spaces+quotes+"&#<>")
	if to-from < shortest {
		return 0, 0
	}
	return from, to
}

// bare handles a name and, without a sign between them, its value: something in
// quotes, something that is no word, as in "password hunter2", or whatever
// follows the flag of a command, as in "--password hunter".
func (r *redactor) bare(word string, secrecy secrecy, end int) (from, to int) {
	from = end + 1
	if !isSpace(r.text[end]) || secrecy == key || from >= len(r.text) {
		return 0, 0
	}
	flag := strings.HasPrefix(word, "-")
	if quote := r.text[from]; isQuote(quote) {
		if !flag && !isPassword(word) {
			return 0, 0
		}
		from++
		return from, from + spanUntil(r.text[from:], string(quote))
	}
	if !flag && !isWord(r.text[from]) {
		return 0, 0
	}
	to = from + wordEnd(r.text[from:])
	to = from + len(strings.TrimRight(r.text[from:to], punctuation))
	if value := r.text[from:to]; !flag && (len(value) < 6 || !strings.ContainsAny(value, "0123456789")) {
		return 0, 0
	}
	return from, to
}

// isPassword reports whether a name is that of a password, and not of a secret
// or token, which have names of their own in quotes: secret "db" not found.
func isPassword(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "pass") || strings.HasSuffix(name, "pwd")
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
		if from := webhook(token); from > 0 {
			return r.drop(i+from, i+len(strings.TrimRight(token, punctuation)))
		}
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
