package dlq

import (
	"regexp"
	"slices"
	"strings"
)

// token is the shape of a secret word: it begins with prefix, has a digit, and
// has at least min characters.
type token struct {
	min    int
	prefix string
}

// vendors lists the tokens of vendors by their prefixes. The prefixes are
// documented by the vendor or known to gitleaks (github.com/gitleaks/gitleaks).
// Lengths are rounded down.
var vendors = [...]token{
	{12, "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat-"}, // GitHub, GitLab
	{20, "glagent- glcbt- gldt- glft- glimt- gloas- glptt- glrt- glsoat- GR1348941"},
	{12, "xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp-"},       // Slack
	{12, "sk_live_ sk_test_ rk_live_ rk_test_ whsec_"},                  // Stripe
	{20, "sq0atp- sq0csp- EZAK EZTK"},                                   // Square, EasyPost
	{30, "shpat_ shpca_ shppa_ shpss_ api_org_"},                        // Shopify, Hugging Face
	{30, "npm_ pnu_ rubygems_ pypi- AKCp"},                              // npm, RubyGems, PyPI, Artifactory
	{34, "sk- gsk_ pplx- hf_"},                                          // OpenAI and Anthropic, Groq, Perplexity, Hugging Face
	{34, "SK key- SG. xkeysib- EAA"},                                    // Twilio, Mailgun, SendGrid, Brevo, Meta
	{30, "AIza GOCSPX- ya29. dapi HRKU- pscale_ pul- figd_"},            // Google, Databricks, Heroku, PlanetScale, Pulumi, Figma
	{30, "glc_ glsa_ sntrys_ sntryu_ NRAK- PMAK- lin_api_ ntn_"},        // Grafana, Sentry, New Relic, Postman, Linear, Notion
	{20, "LTAI dop_v1_ doo_v1_ dor_v1_ dckr_pat_ tskey- ops_eyJ"},       // Alibaba, DigitalOcean, Docker, Tailscale, 1Password
	{20, "hvb. hvr. hvs. dp.ct. dp.pt. dp.st. dp.sa. AGE-SECRET-KEY-1"}, // Vault, Doppler, age
}

// tokens are the tokens of vendors by the first letter of their prefix.
var tokens = func() (t [256][]token) {
	for _, v := range vendors {
		for prefix := range strings.FieldsSeq(v.prefix) {
			t[prefix[0]] = append(t[prefix[0]], token{v.min, prefix})
		}
	}
	return t
}()

// shapes matches secrets that vendors does not list: keys of AWS and
// DigitalOcean, and tokens of Telegram, of an application of Meta, and of
// Discord.
var shapes = regexp.MustCompile(`^(A[KS]IA[A-Z0-9]{16}|DO[08]0[A-Z0-9]{16}|(?:bot)?\d{5,16}:A[\w-]{34}|\d{13,17}\|[\w-]{25,32}|[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40})(?:[^\w-]|$)`)

// webhooks are addresses whose path is the secret.
var webhooks = regexp.MustCompile(`^[\w.-]*?(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/|webhook\.office\.com/webhookb2/|outlook\.office\.com/webhook/|hooks\.zapier\.com/hooks/catch/)`)

// commands are those with a flag whose value is a password. A flag without a
// space at its end has the value in the same word.
var commands = [...]struct{ name, flag string }{
	{"mysql", "-p"}, {"mariadb", "-p"}, {"sshpass", "-p"}, {"mongo", "-p "}, {"login", "-p "}, {"7z", "-p"}, {"unrar", "-p"}, {"zip", "-P"},
	{"redis-cli", "-a "}, {"ldap", "-w "},
}

// secrecy says how surely a name announces a secret.
type secrecy uint8

const (
	public secrecy = iota // "-"
	key                   // "=": a secret follows only "="
	weak                  // "?": a secret follows "=", or ":" if it is not a plain word
	secret                // "!": a secret always follows
)

// names are endings of names by their last letter, each after the sign of its
// secrecy. The first ending that matches counts. An ending with a "." must be a
// whole word: ".pin" does not match spin.
var names = [256]string{
	'c': "!cvc",
	'd': "!password !passwd !pwd !sessionid !sessid ?.sid",
	'e': "!passphrase !passcode !cookie ?signature",
	'g': "?sig",
	'h': "?auth",
	'l': "!credential",
	'n': "!authorization !token ?session ?.pin",
	'p': "?.otp",
	's': "!credentials !creds -sshpass ?pass",
	't': "!secret !jwt",
	'v': "!cvv",
	'y': "!apikey !accesskey !secretkey !privatekey !accountkey !signingkey !encryptionkey !identifiedby " +
		"-routingkey -partitionkey -idempotencykey -primarykey -foreignkey -cachekey -objectkey =key",
}

// secrecyOf returns how surely the word text[i:end] announces a secret. It
// reads "key" and "by" together with the word before them, as in "api key".
func secrecyOf(text string, i, end int) secrecy {
	name := strings.TrimRight(text[i:end], digits+"-_")
	if name == "" || names[name[len(name)-1]|0x20] == "" {
		return public
	}
	phrase := i > 1 && text[i-1] == ' ' && (strings.EqualFold(name, "key") || strings.EqualFold(name, "by"))
	if phrase {
		before := text[max(0, i-16) : i-1]
		name = before[strings.LastIndexAny(before, spaces+quotes+punctuation)+1:] + name
	}
	var room [32]byte
	flat := room[:0] // the end of the name, lower-case, without - and _
	for _, c := range []byte(name[max(0, len(name)-len(room)):]) {
		if isAlnum(c) {
			flat = append(flat, c|0x20)
		}
	}
	for e := range strings.FieldsSeq(names[name[len(name)-1]|0x20]) {
		ending, whole := strings.CutPrefix(e[1:], ".")
		at := len(name) - len(ending)
		if !strings.HasSuffix(string(flat), ending) || whole && at > 0 && isAlnum(name[at-1]) && (!isUpper(name[at]) || isUpper(name[at-1])) {
			continue
		}
		if s := secrecy(strings.IndexByte("-=?!", e[0])); s < secret || !phrase && string(flat) != "token" {
			return s
		}
		return weak
	}
	return public
}

// wellKnown returns the span of a secret that its shape alone shows, and that
// begins in the word text[i:end]. The span is empty if there is none.
func wellKnown(text string, i, end int) (from, to int) {
	word, near := text[i:end], near(text, i)
	switch {
	case strings.HasPrefix(word, "-----BEGIN"):
		if m := pem.FindStringIndex(near); m != nil {
			body, _, _ := strings.Cut(text[i+m[1]:], "-----END")
			return i + m[1], i + m[1] + len(body)
		}
	case strings.HasPrefix(word, "eyJ") && len(word) > 10 && strings.HasPrefix(text[end:], "."):
		return i, skip(text, end, words+".")
	case len(word) >= 20 || len(word) >= 5 && (strings.HasPrefix(text[end:], ":") || strings.HasPrefix(text[end:], "|")):
		if m := shapes.FindStringSubmatch(near); m != nil {
			return i, i + len(m[1])
		}
	}
	for _, t := range tokens[word[0]] {
		if !strings.HasPrefix(near, t.prefix) || !strings.ContainsAny(near[:min(len(near), 64)], digits) {
			continue
		}
		if to = end; strings.Contains(t.prefix, ".") {
			to = skip(text, end, words+".")
		}
		if to-i >= t.min && strings.ContainsAny(text[i:to], digits) {
			return i, to
		}
	}
	n := 0
	for n < len(near) && (isAlnum(near[n]) || near[n] == '/' || near[n] == '+') {
		n++
	}
	if n == 40 && (i == 0 || strings.IndexByte("/+=", text[i-1]) < 0) && // a key of AWS, not a path or digest
		strings.ContainsAny(near[:n], uppers) && strings.ContainsAny(near[:n], lowers) && strings.ContainsAny(near[:n], digits) && strings.Count(near[:n], "/") <= 4 {
		return i, i + n
	}
	d := strings.IndexAny(near[:min(len(near), len(word))], digits)
	if d >= 0 && skip(near, d, digits+" -") >= d+13 {
		if m := cards.FindStringSubmatchIndex(text[i:min(len(text), end+32)]); m != nil && luhn(text[i+m[2]:i+m[3]]) {
			return i + m[2], i + m[3]
		}
	}
	if d == 2 && len(word) >= 4 {
		return i, i + iban(near)
	}
	return i, i
}

var (
	pem   = regexp.MustCompile(`^-----BEGIN [A-Z ]{0,60}PRIVATE KEY[A-Z ]{0,20}-----`)
	cards = regexp.MustCompile(`(?:^|\D)([2-6]\d{3}(?:[ -]?\d){9,15})(?:\D|$)`)
	ibans = regexp.MustCompile(`^[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?`)
)

// luhn reports whether the check digit of a payment card number is valid.
func luhn(number string) bool {
	sum, n := 0, 0
	for _, c := range slices.Backward([]byte(number)) {
		if isDigit(c) {
			digit := int(c-'0') << (n % 2)
			sum, n = sum+digit/10+digit%10, n+1
		}
	}
	return sum%10 == 0
}

// iban returns the length of the international bank account number that s
// begins with, or 0. Spaces may split the number into groups of four.
func iban(s string) int {
	for s = ibans.FindString(s); len(s) >= 15; s = s[:max(0, strings.LastIndexByte(s, ' '))] {
		flat, rest := strings.ReplaceAll(s, " ", ""), 0
		for _, c := range []byte(flat[4:] + flat[:4]) {
			digit, base := int(c-'0'), 10
			if isUpper(c) {
				digit, base = int(c-'A')+10, 100
			}
			rest = (rest*base + digit) % 97
		}
		if rest == 1 {
			return len(s)
		}
	}
	return 0
}
