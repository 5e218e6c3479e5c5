package dlq

import "strings"

// wellKnown returns where a secret that is known by its looks, and begins at
// i, ends; the word there ends at end. Otherwise it returns i.
func wellKnown(text string, i, end int) int {
	word := text[i:end]
	switch {
	case len(word) == 20 && (strings.HasPrefix(word, "AKIA") || strings.HasPrefix(word, "ASIA")) && isUpperAlnum(word):
		return end
	case strings.HasPrefix(word, "eyJ") && len(word) > 10 && end < len(text) && text[end] == '.':
		for end < len(text) && (isWord(text[end]) || text[end] == '.') {
			end++
		}
		return end
	case len(word) >= 12:
		for _, prefix := range [...]string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "xoxa-", "sk_live_", "rk_live_", "AIza"} {
			if strings.HasPrefix(word, prefix) {
				return end
			}
		}
	}
	if i == 0 || strings.IndexByte("/+=", text[i-1]) < 0 {
		if n := awsSecret(text[i:]); n > 0 {
			return i + n
		}
	}
	return i
}

// awsSecret returns 40 if s begins with 40 characters of base 64, and no more,
// that are no hexadecimal digest and no path.
func awsSecret(s string) int {
	const size = 40
	n := 0
	for n < len(s) && n <= size && (isAlnum(s[n]) || s[n] == '/' || s[n] == '+') {
		n++
	}
	if n != size {
		return 0
	}
	var uppers, lowers, digits, slashes int
	for _, c := range []byte(s[:size]) {
		switch {
		case isUpper(c):
			uppers++
		case isDigit(c):
			digits++
		case c == '/' || c == '+':
			slashes++
		default:
			lowers++
		}
	}
	if uppers < 4 || lowers < 4 || digits < 1 || slashes > 4 {
		return 0
	}
	return size
}

// card returns the length of the payment card number that s begins with, or
// 0. Its digits may stand in groups with a space or hyphen between them.
func card(s string) int {
	if s[0] < '2' || s[0] > '6' {
		return 0
	}
	var digits [19]byte
	n, i := 0, 0
	for ; i < len(s); i++ {
		switch {
		case isDigit(s[i]):
			if n == len(digits) {
				return 0
			}
			digits[n] = s[i] - '0'
			n++
			continue
		case (s[i] == ' ' || s[i] == '-') && n >= 4 && i+1 < len(s) && isDigit(s[i+1]):
			continue
		}
		break
	}
	if n < 13 {
		return 0
	}
	sum := 0
	for k := range n {
		digit := int(digits[n-1-k])
		if k%2 == 1 {
			if digit *= 2; digit > 9 {
				digit -= 9
			}
		}
		sum += digit
	}
	if sum%10 != 0 {
		return 0
	}
	return i
}

// secrecy says how surely a name announces a secret.
type secrecy uint8

const (
	public secrecy = iota
	key            // with "=" only
	weak           // with "=", or with ":" before something that is no plain word
	secret         // always
)

func secrecyOf(name string) secrecy {
	name = strings.TrimRight(name, "0123456789")
	var room [32]byte
	flat := room[:0] // the end of the name, lower-case, without - and _
	for _, c := range []byte(name[max(0, len(name)-len(room)):]) {
		if c != '-' && c != '_' {
			flat = append(flat, lower(c))
		}
	}
	if len(flat) < 3 || flat[len(flat)-1] < 'a' || flat[len(flat)-1] > 'z' {
		return public
	}
	for _, ending := range endings[flat[len(flat)-1]-'a'] {
		if !strings.HasSuffix(string(flat), ending.name) {
			continue
		}
		if ending.secrecy == weak && ending.name == "token" && len(flat) > len("token") {
			return secret
		}
		return ending.secrecy
	}
	return public
}

// endings of names, by their last letter; the first that fits counts.
var endings = [1 + 'z' - 'a'][]struct {
	name    string
	secrecy secrecy
}{
	'c' - 'a': {{"cvc", secret}},
	'd' - 'a': {{"password", secret}, {"passwd", secret}, {"pwd", secret}, {"sessionid", secret}},
	'e' - 'a': {{"passphrase", secret}, {"cookie", secret}, {"signature", weak}},
	'g' - 'a': {{"sig", weak}},
	'h' - 'a': {{"auth", weak}},
	'l' - 'a': {{"credential", secret}},
	'n' - 'a': {{"authorization", secret}, {"token", weak}, {"session", weak}},
	's' - 'a': {{"credentials", secret}, {"pass", weak}},
	't' - 'a': {{"secret", secret}, {"jwt", secret}},
	'v' - 'a': {{"cvv", secret}},
	'y' - 'a': {
		{"apikey", secret}, {"accesskey", secret}, {"secretkey", secret}, {"privatekey", secret}, {"accountkey", secret},
		{"routingkey", public}, {"partitionkey", public}, {"idempotencykey", public}, {"primarykey", public},
		{"foreignkey", public}, {"cachekey", public}, {"objectkey", public}, {"key", key},
	},
}

type scheme uint8

const (
	noScheme scheme = iota
	basic
	bearer
)

func schemeOf(word string) scheme {
	switch {
	case strings.EqualFold(word, "bearer"), strings.EqualFold(word, "negotiate"), strings.EqualFold(word, "apikey"):
		return bearer
	case strings.EqualFold(word, "basic"), strings.EqualFold(word, "digest"):
		return basic
	}
	return noScheme
}

func isUpperAlnum(s string) bool {
	for i := range len(s) {
		if !isUpper(s[i]) && !isDigit(s[i]) {
			return false
		}
	}
	return true
}
