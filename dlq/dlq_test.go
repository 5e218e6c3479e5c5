package dlq

import "testing"

func TestDestinations(t *testing.T) {
	for name, tt := range map[string]struct {
		to   func(topic string) string
		want string
	}{
		"Topic":             {Topic("graveyard"), "graveyard"},
		"Topic, no name":    {Topic(""), "orders"}, // which a Consumer refuses
		"Suffix":            {Suffix("-dead"), "orders-dead"},
		"Suffix, no suffix": {Suffix(""), "orders"}, // likewise
		"Discard":           {Discard, ""},
	} {
		if got := tt.to("orders"); got != tt.want {
			t.Errorf("%s: dead letters of orders go to %q, want %q", name, got, tt.want)
		}
	}
}
