package httpretry

import (
	"io"
	"net/http"

	"github.com/redrive-go/redrive/classify"
)

// maxRead is how much of a failing response is read, for its problem and so that
// the connection can be used again.
const maxRead = 64 << 10

// Check returns nil if the status of resp is below 400, and leaves its body to
// the caller. Otherwise it returns a [*classify.HTTPError] with the status, the
// Retry-After and the RFC 9457 problem of the response, see
// [classify.FromResponse], and closes the body after reading at most 64 KiB of
// it.
func Check(resp *http.Response) error {
	if resp == nil || resp.StatusCode < 400 || resp.Body == nil {
		return classify.FromResponse(resp)
	}
	defer resp.Body.Close()
	limited := *resp
	limited.Body = io.NopCloser(io.LimitReader(resp.Body, maxRead))
	err := classify.FromResponse(&limited)
	_, _ = io.Copy(io.Discard, limited.Body)
	return err
}
