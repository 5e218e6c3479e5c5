package dlq

import (
	"regexp"
	"slices"
	"strings"
)

const (
	redacted    = "[redacted]"
	spaces      = " \t\r\n\v\f"
	quotes      = "\"'`"
	digits      = "0123456789"
	uppers      = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	lowers      = "abcdefghijklmnopqrstuvwxyz"
	words       = uppers + lowers + digits + "-_"
	punctuation = ").,;:>}" // that ends a sentence or clause, not a secret
)

// Redact replaces what looks like a secret in text by "[redacted]":
//
//   - the value after a name that ends in password, secret, token, key,
//     credentials, authorization, cookie, session and the like: password=hunter2,
//     "api_key": "…", password is …, <password>…</password>; if the value is an
//     object or array, all of its contents
//   - the value of a command's flag: --password …, mysql -p…, curl -u user:…
//   - what follows Bearer and Basic, and the header Authorization with any scheme
//   - user and password in a URL or a data source name, as in
//     postgres://app:hunter2@db/orders, and the path of a webhook
//   - private keys in PEM, JSON Web Tokens, tokens of well-known vendors, and
//     payment card and international bank account numbers that are valid
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
	done  int    // bytes of text that are copied or left out
	token int    // start of the current run without spaces and quotes
	colon bool   // the current run has a colon
	flag  string // flag with a password, of the command on the current line
}

// step looks at what begins at i and returns where to go on.
func (r *redactor) step(i int) int {
	switch c := r.text[i]; {
	case isWord(c):
		return r.word(i)
	case strings.HasPrefix(r.text[i:], "//"):
		return r.url(i + len("//"))
	case c == '/' && !r.colon:
		r.token = len(r.text) // a path is not a user name
	case c == ':':
		r.colon = true
	case c == '@' && r.colon && i > r.token:
		r.drop(r.token, i)
	case (c == '?' || c == '&') && strings.HasPrefix(r.text[i+1:], "code="): // OAuth exchanges the code for a token
		from := i + len("?code=")
		if n := until(r.text[from:], spaces+quotes+"&#<>"); n >= 10 {
			return r.drop(from, from+n)
		}
	case c == '\n':
		r.token, r.colon, r.flag = i+1, false, ""
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

// word handles a word that begins at i. It drops the word if it is a secret, or
// the secret that the word announces.
func (r *redactor) word(i int) int {
	end := i
	for end < len(r.text) && isWord(r.text[end]) {
		end++
	}
	from, to := wellKnown(r.text, i, end)
	if from == to {
		from, to = r.value(i, end)
	}
	return r.drop(from, to)
}

// assignment matches the text between a name and its value. The sign is "=" or
// ":", plain or escaped for a URL, or "->", "is" or "was". Before the sign
// there may be the closing quote of the name and the name "value". After it
// there may be a type, as spew writes it, as in (string) (len=7) "hunter2", and
// the opening quote of the value. Quotes may be escaped.
var assignment = regexp.MustCompile(`(?i)^[\s"'\x60\\]*(?:[\s"'\x60\\,]+value[\s"'\x60\\]*)?([=:]|->|%3[da]|\s(?:is|was)[\s:])[\s=:>]*` +
	`(?:(?:\([*\[\]\w./]+\))+ *\(*\(len=\d+(?: cap=\d+)?\) *)?(\\*["'\x60])?`)

// attribute matches the text after the name in
// <add key="DbPassword" value="hunter2">.
var attribute = regexp.MustCompile(`(?i)^[^"'=]+["']\s+value\s*=`)

// value returns the span of the secret that the word text[i:end] announces. If
// there is none, it returns end twice.
func (r *redactor) value(i, end int) (from, to int) {
	if r.flag == "" && (end == len(r.text) || strings.IndexByte(".,;/()[]{}|+", r.text[end]) >= 0) {
		return end, end
	}
	word := r.text[i:end]
	for _, c := range commands {
		if strings.HasPrefix(word, c.name) {
			r.flag = c.flag
		}
	}
	flagged, secrecy := r.flag != "" && strings.HasPrefix(word+" ", r.flag), secrecyOf(r.text, i, end)
	switch {
	case flagged && len(word) > len(r.flag): // mysql -phunter2
		return i + len(r.flag), end + wordEnd(r.text[end:])
	case end == len(r.text):
		return end, end
	case r.text[end] == '>' && i > 0 && r.text[i-1] == '<' && secrecy > key: // <password>hunter2</password>
		return end + 1, end + 1 + until(r.text[end+1:], "<")
	}
	var m []int
	if secrecy > public && r.text[end] != '>' {
		m = assignment.FindStringSubmatchIndex(near(r.text, end))
	}
	if m == nil {
		return r.following(word, secrecy, end)
	}
	from = end + m[1]
	sign, opening := r.text[end+m[2]], r.text[end+max(m[4], 0):end+max(m[5], 0)]
	switch {
	case secrecy == key && (sign != '=' || opening != "" && attribute.MatchString(near(r.text, from))):
		return end, end
	case opening != "":
		return from, r.closing(from, opening)
	case from < len(r.text) && isOpening(r.text[from]) && (secrecy == secret || sign == '='):
		return r.inside(from, end)
	}
	value := strings.TrimRight(r.text[from:from+unquoted(strings.ToLower(word), r.text[from:])], punctuation)
	if isPlain(value) || secrecy == weak && sign == ':' && isLower(strings.TrimRight(value, "]")) || isSpace(sign) && !looksSecret(value) {
		return end, end
	}
	return from, from + len(value)
}

// following returns the span of a secret that follows a word without a sign
// between them. The word is a flag, a scheme, or a name, as in "password
// hunter2".
func (r *redactor) following(word string, secrecy secrecy, end int) (from, to int) {
	flagged, user, scheme := word == strings.TrimSpace(r.flag), word == "-u" || strings.HasSuffix(word, "-user"), isScheme(word)
	if !flagged && (!isSpace(r.text[end]) || secrecy <= key && !user && !scheme) {
		return end, end
	}
	from = skip(r.text, end, spaces)
	quoted := from < len(r.text) && isQuote(r.text[from])
	if quoted {
		from++
		to = from + until(r.text[from:], r.text[from-1:from])
	} else {
		to = from + len(strings.TrimRight(r.text[from:from+wordEnd(r.text[from:])], punctuation))
	}
	value, name := r.text[from:to], strings.ToLower(word)
	switch {
	case value == "":
		return end, end
	case user:
		flagged = strings.IndexByte(value, ':') > 0 && !strings.Contains(value, "://")
	case scheme: // no secret in a sentence, or in the header WWW-Authenticate
		flagged = !quoted && !isPlain(value) && !strings.HasPrefix(value, "realm=") && (name != "basic" && name != "digest" || !isLower(value))
	case word[0] == '-':
		flagged = flagged || quoted || value[0] != '-'
	case quoted: // after "secret" or "token", the quotes can hold a name: secret "db" not found
		flagged = strings.Contains(name, "pass") || strings.HasSuffix(name, "pwd") || name == "by"
	default:
		flagged = isWord(value[0]) && len(value) >= 6 && strings.ContainsAny(value, digits)
	}
	if !flagged {
		return end, end
	}
	return from, to
}

func isScheme(word string) bool {
	return slices.ContainsFunc([]string{"basic", "bearer", "digest", "apikey", "negotiate"}, func(s string) bool { return strings.EqualFold(s, word) })
}

// isPlain reports whether a word is an ordinary one that can stand where a
// secret would, as in "password is wrong".
func isPlain(word string) bool {
	return strings.Contains(" auth authentication authorization token tokens scheme realm credentials access header error failed is was not and or "+
		"required missing invalid incorrect wrong empty expired unset none null nil true false ", " "+strings.ToLower(strings.TrimRight(word, "]"))+" ")
}

// looksSecret reports whether a value looks like a secret, not like a word.
func looksSecret(value string) bool {
	return len(value) >= 6 && (strings.ContainsAny(value, digits+"!@#$%^&*+") || strings.ContainsAny(strings.TrimLeft(value, uppers), uppers))
}

// closing returns the index of the quote that ends the value at from.
func (r *redactor) closing(from int, opening string) int {
	quote := opening[len(opening)-1]
	for i := from; i < len(r.text); i++ {
		if r.text[i] == quote && (i > from && r.text[i-1] == '\\') == (len(opening) > 1) {
			return i - len(opening) + 1
		}
	}
	return len(r.text)
}

// parameters matches the value of Authorization: a scheme and a word, or a
// scheme and several words with commas between them.
var parameters = regexp.MustCompile("^[A-Za-z][A-Za-z0-9-]{0,23}:? +(?:[^\\s\"'`,]*(?:\"[^\"]*\"?)?, *)*(?:[^\\s\"'`,]*=\"[^\"]*\"?|[^\\s\"'`,]*)")

// unquoted returns the length of a value without quotes. If the value begins
// with a scheme, the word after the scheme counts, too.
func unquoted(name, rest string) int {
	switch end := wordEnd(rest); {
	case strings.HasSuffix(name, "cookie"):
		return until(rest, "\r\n\"'`")
	case strings.HasSuffix(name, "authorization"):
		return max(end, len(parameters.FindString(rest)))
	case isScheme(strings.TrimRight(rest[:end], ":")) || strings.HasSuffix(strings.ToUpper(rest[:end]), "-SHA256"):
		next := skip(rest, end, " ")
		return next + wordEnd(rest[next:])
	default:
		return end
	}
}

// inside handles a value in brackets, the first of which is at i: an object or
// an array, or a word that begins with one.
func (r *redactor) inside(i, end int) (from, to int) {
	if after, ok := strings.CutPrefix(r.text[i:], redacted); ok && strings.Trim(after[:wordEnd(after)], punctuation+"]") == "" {
		return end, end
	}
	depth := 0
	for to = i; to < len(r.text); to++ {
		if isOpening(r.text[to]) {
			depth++
		} else if depth -= strings.Count("])}>", r.text[to:to+1]); depth == 0 {
			break
		}
	}
	rest := r.text[min(to+1, len(r.text)):]
	if rest = strings.TrimRight(rest[:wordEnd(rest)], punctuation+"]"); rest != "" {
		return i, to + 1 + len(rest)
	}
	return i + 1, to
}

// url takes user and password out of a URL whose authority begins at i.
func (r *redactor) url(i int) int {
	token := r.text[i:min(len(r.text), i+4<<10)] // the longest URL that is examined
	token = token[:until(token, spaces+quotes+"<>")]
	authority := token[:until(token, "/?#")]
	at := strings.LastIndexByte(authority, '@')
	if _, port, _ := strings.Cut(authority, ":"); at < 0 && !strings.HasPrefix(authority, "[") && strings.Trim(port, digits) != "" {
		at = strings.LastIndexByte(token, '@') // a password with a slash in it
	}
	if at > 0 {
		return r.drop(i, i+at)
	}
	if strings.Contains(token, "hook") && webhooks.MatchString(token) {
		return r.drop(i+len(webhooks.FindString(token)), i+len(strings.TrimRight(token, punctuation)))
	}
	r.token, r.colon = i+len(authority), false
	return r.token
}

// near returns the 400 bytes of text from i on: patterns examine no more.
func near(text string, i int) string { return text[i:min(len(text), i+400)] }

// wordEnd returns how far s goes without spaces and quotes.
func wordEnd(s string) int { return until(s, spaces+quotes) }

func until(s, stops string) int {
	if n := strings.IndexAny(s, stops); n >= 0 {
		return n
	}
	return len(s)
}

// skip returns the index of the first character from i on that is not in set.
func skip(s string, i int, set string) int { return len(s) - len(strings.TrimLeft(s[i:], set)) }

// isWord takes "-" and "_" along, as in X-Api-Key.
func isWord(c byte) bool    { return isAlnum(c) || c == '-' || c == '_' }
func isQuote(c byte) bool   { return c == '"' || c == '\'' || c == '`' }
func isOpening(c byte) bool { return strings.IndexByte("[({<", c) >= 0 }
func isLower(s string) bool { return strings.Trim(s, lowers) == "" }
