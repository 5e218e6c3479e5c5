package classify_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/redrive-go/redrive/classify"
)

func BenchmarkOf(b *testing.B) {
	refused := &url.Error{Op: "Post", URL: "http://127.0.0.1/", Err: &net.OpError{
		Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED),
	}}
	cases := []struct {
		name string
		err  error
	}{
		{"nil", nil},
		{"unknown", errors.New("out of paper")},
		{"wrapped unknown", fmt.Errorf("print: %w", fmt.Errorf("page 3: %w", errors.New("out of paper")))},
		{"marked", fmt.Errorf("print: %w", classify.Permanent(errors.New("out of paper")))},
		{"wrapped dial", fmt.Errorf("charge: %w", refused)},
		{"http status", fmt.Errorf("charge: %w", &classify.HTTPError{Status: http.StatusBadGateway})},
		{"joined", errors.Join(refused, errors.New("out of paper"))},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				classify.Of(c.err)
			}
		})
	}
}
