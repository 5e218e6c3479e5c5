package dlq

import "testing"

func TestDestinations(t *testing.T) {
	for name, tt := range map[string]struct {
		to   func(topic string) string
		want string
	}{
		"Topic":   {Topic("graveyard"), "graveyard"},
		"Suffix":  {Suffix(".dead"), "orders.dead"},
		"Discard": {Discard, ""},
	} {
		if got := tt.to("orders"); got != tt.want {
			t.Errorf("%s: dead letters of orders go to %q, want %q", name, got, tt.want)
		}
	}
}
