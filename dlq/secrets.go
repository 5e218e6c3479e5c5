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
		return dottedEnd(text, end)
	}
	if to := tokenEnd(text, i, end); to > i {
		return to
	}
	if to := botToken(text, i, end); to > i {
		return to
	}
	if i == 0 || strings.IndexByte("/+=", text[i-1]) < 0 {
		if n := awsSecret(text[i:]); n > 0 {
			return i + n
		}
	}
	return i
}

// tokens are the prefixes by which issuers let their secrets be known, by their
// first letter, with the length from which on a word is taken for one. Where
// nothing else is named, they are those of gitleaks
// (github.com/gitleaks/gitleaks), and lengths are rounded down.
var tokens = [1 + 'z'][]struct {
	prefix string
	min    int
}{
	'A': {
		{"AGE-SECRET-KEY-1", 50}, // age-encryption.org
		{"AIza", 35},             // Google: cloud.google.com/docs/authentication/api-keys
		{"AKCp", 60},             // Artifactory
	},
	'E': {
		{"EAA", 100}, // Meta: developers.facebook.com/docs/facebook-login/guides/access-tokens
		{"EZAK", 40}, // EasyPost
		{"EZTK", 40},
	},
	'G': {
		{"GOCSPX-", 30}, // Google OAuth client secret
		{"GR1348941", 25},
	},
	'H': {
		{"HRKU-", 30}, // Heroku
	},
	'L': {
		{"LTAI", 20}, // Alibaba Cloud
	},
	'N': {
		{"NRAK-", 30}, // New Relic
	},
	'P': {
		{"PMAK-", 50}, // Postman
	},
	'S': {
		{"SG.", 40}, // SendGrid: docs.sendgrid.com/ui/account-and-settings/api-keys
		{"SK", 34},  // Twilio: twilio.com/docs/iam/api-keys
	},
	'a': {
		{"api_org_", 30},
	},
	'd': {
		{"dapi", 34},      // Databricks
		{"dckr_pat_", 20}, // Docker: docs.docker.com/security/access-tokens
		{"doo_v1_", 40},   // DigitalOcean: docs.digitalocean.com/reference/api/create-personal-access-token
		{"dop_v1_", 40},
		{"dor_v1_", 40},
		{"dp.", 40}, // Doppler
	},
	'f': {
		{"figd_", 30}, // Figma
	},
	'g': {
		{"ghp_", 12}, // GitHub: docs.github.com/authentication/keeping-your-account-and-data-secure/about-authentication-to-github
		{"gho_", 12},
		{"ghu_", 12},
		{"ghs_", 12},
		{"ghr_", 12},
		{"github_pat_", 12},
		{"glagent-", 20}, // GitLab: docs.gitlab.com/security/tokens
		{"glcbt-", 20},
		{"gldt-", 20},
		{"glft-", 20},
		{"glimt-", 20},
		{"gloas-", 20},
		{"glpat-", 12},
		{"glptt-", 20},
		{"glrt-", 20},
		{"glsoat-", 20},
		{"glc_", 32}, // Grafana
		{"glsa_", 32},
		{"gsk_", 40}, // Groq
	},
	'h': {
		{"hf_", 30},  // Hugging Face: huggingface.co/docs/hub/security-tokens
		{"hvb.", 30}, // Vault: developer.hashicorp.com/vault/docs/concepts/tokens
		{"hvr.", 30},
		{"hvs.", 20},
	},
	'k': {
		{"key-", 36}, // Mailgun
	},
	'l': {
		{"lin_api_", 30}, // Linear
	},
	'n': {
		{"npm_", 30}, // npm: docs.npmjs.com/about-access-tokens
		{"ntn_", 40}, // Notion
	},
	'o': {
		{"ops_eyJ", 40}, // 1Password
	},
	'p': {
		{"pnu_", 30},
		{"pplx-", 40},
		{"pscale_", 30}, // PlanetScale
		{"pul-", 40},    // Pulumi
		{"pypi-", 40},   // PyPI: pypi.org/help/#apitoken
	},
	'r': {
		{"rk_live_", 12},
		{"rk_test_", 12},
		{"rubygems_", 40},
	},
	's': {
		{"shpat_", 30}, // Shopify
		{"shpca_", 30},
		{"shppa_", 30},
		{"shpss_", 30},
		{"sk-", 35},      // OpenAI, Anthropic: docs.anthropic.com/en/api/overview
		{"sk_live_", 12}, // Stripe: docs.stripe.com/keys
		{"sk_test_", 12},
		{"sntrys_", 40}, // Sentry
		{"sntryu_", 40},
		{"sq0atp-", 20}, // Square
		{"sq0csp-", 20},
	},
	't': {
		{"tskey-", 20}, // Tailscale
	},
	'w': {
		{"whsec_", 20},
	},
	'x': {
		{"xapp-", 20}, // Slack: docs.slack.dev/authentication/tokens
		{"xkeysib-", 40},
		{"xoxa-", 12},
		{"xoxb-", 12},
		{"xoxe-", 12},
		{"xoxe.", 12},
		{"xoxo-", 12},
		{"xoxp-", 12},
		{"xoxr-", 12},
		{"xoxs-", 12},
	},
	'y': {
		{"ya29.", 20}, // Google OAuth: developers.google.com/identity/protocols/oauth2
	},
}

// tokenEnd returns where a token with a well-known prefix ends that begins with
// the word text[i:end], or i. Tokens have digits.
func tokenEnd(text string, i, end int) int {
	const near = 64 // where the first digit is
	if int(text[i]) >= len(tokens) {
		return i
	}
	for _, t := range tokens[text[i]] {
		if !strings.HasPrefix(text[i:], t.prefix) || !strings.ContainsAny(text[i+len(t.prefix):min(len(text), i+near)], "0123456789") {
			continue
		}
		to := end
		if strings.IndexByte(t.prefix, '.') >= 0 {
			to = dottedEnd(text, end)
		}
		if to-i >= t.min && strings.ContainsAny(text[i+len(t.prefix):to], "0123456789") {
			return to
		}
	}
	return i
}

// dottedEnd returns where the words after i end that dots join.
func dottedEnd(text string, i int) int {
	for i < len(text) && (isWord(text[i]) || text[i] == '.') {
		i++
	}
	return i
}

// botToken returns where a Telegram token ends, a number, a colon and 35
// characters that begin with A (core.telegram.org/bots/api), whose number is
// the word text[i:end]; or i.
func botToken(text string, i, end int) int {
	const size = 35
	digits := strings.TrimPrefix(text[i:end], "bot")
	if len(digits) < 5 || len(digits) > 16 || strings.Trim(digits, "0123456789") != "" || !strings.HasPrefix(text[end:], ":A") {
		return i
	}
	to := end + 1
	for to < len(text) && isWord(text[to]) {
		to++
	}
	if to-end-1 != size {
		return i
	}
	return to
}

// webhooks are addresses whose path is the secret.
var webhooks = [...]struct{ host, path string }{
	{"hooks.slack.com", "/services/"}, // docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
	{"hooks.slack.com", "/workflows/"},
	{"hooks.slack.com", "/triggers/"},
	{"discord.com", "/api/webhooks/"}, // discord.com/developers/docs/resources/webhook
	{"discordapp.com", "/api/webhooks/"},
	{"webhook.office.com", "/webhookb2/"}, // learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors
	{"outlook.office.com", "/webhook/"},
	{"hooks.zapier.com", "/hooks/catch/"},
}

// webhook returns where the secret in the path of an address begins, or 0.
func webhook(address string) int {
	slash := strings.IndexByte(address, '/')
	if slash < 0 {
		return 0
	}
	for _, w := range webhooks {
		if strings.HasSuffix(address[:slash], w.host) && strings.HasPrefix(address[slash:], w.path) {
			return slash + len(w.path)
		}
	}
	return 0
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
		if !strings.HasSuffix(string(flat), ending.name) || ending.whole && !beginsWord(name, len(name)-len(ending.name)) {
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
	whole   bool // not as the end of a longer word, as pin in spin
}{
	'c' - 'a': {{"cvc", secret, false}},
	'd' - 'a': {{"password", secret, false}, {"passwd", secret, false}, {"pwd", secret, false}, {"sessionid", secret, false}},
	'e' - 'a': {{"passphrase", secret, false}, {"passcode", secret, false}, {"cookie", secret, false}, {"signature", weak, false}},
	'g' - 'a': {{"sig", weak, false}},
	'h' - 'a': {{"auth", weak, false}},
	'l' - 'a': {{"credential", secret, false}},
	'n' - 'a': {{"authorization", secret, false}, {"token", weak, false}, {"session", weak, false}, {"pin", weak, true}},
	'p' - 'a': {{"otp", weak, true}},
	's' - 'a': {{"credentials", secret, false}, {"pass", weak, false}},
	't' - 'a': {{"secret", secret, false}, {"jwt", secret, false}},
	'v' - 'a': {{"cvv", secret, false}},
	'y' - 'a': {
		{"apikey", secret, false}, {"accesskey", secret, false}, {"secretkey", secret, false}, {"privatekey", secret, false}, {"accountkey", secret, false},
		{"routingkey", public, false}, {"partitionkey", public, false}, {"idempotencykey", public, false}, {"primarykey", public, false},
		{"foreignkey", public, false}, {"cachekey", public, false}, {"objectkey", public, false}, {"key", key, false},
	},
}

// beginsWord reports whether a word of name begins at i, as Pin in userPin.
func beginsWord(name string, i int) bool {
	return i <= 0 || !isAlnum(name[i-1]) || isUpper(name[i]) && !isUpper(name[i-1])
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
