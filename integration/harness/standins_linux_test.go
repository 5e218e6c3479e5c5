package harness

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestAskHealth: a stand-in that is well or not says so as the official image.
func TestAskHealth(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	wget := filepath.Join(t.TempDir(), "wget")
	if err := os.WriteFile(wget, []byte(askHealth), 0o755); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	for path, well := range map[string]bool{"/health": true, "/elsewhere": false} {
		if err := exec.CommandContext(t.Context(), wget, "-q", "-O", "/dev/null", server.URL+path).Run(); (err == nil) != well {
			t.Errorf("GET %s = %v, want well %v", path, err, well)
		}
	}
	server.Close()
	if err := exec.CommandContext(t.Context(), wget, "-q", "-O", "/dev/null", server.URL+"/health").Run(); err == nil {
		t.Error("a server that is gone is well")
	}
}
