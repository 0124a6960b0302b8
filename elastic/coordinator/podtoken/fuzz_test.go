package podtoken

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// FuzzClaims parses claims or, if these are invalid, a whole token. Only an unexpired token of a pod for this audience may be reviewed. Any
// other token is refused with a gRPC code and a reason.
func FuzzClaims(f *testing.F) {
	now := time.Unix(1_700_000_000, 0)
	ours := fmt.Sprintf(`{"aud":[%q],"exp":1700000100,"kubernetes.io":{"namespace":"a","pod":{"name":"p","uid":"u"}}}`, v1alpha1.TokenAudience)
	for _, text := range []string{ours, strings.Replace(ours, "1700000100", "1600000000", 1), strings.Replace(ours, "1700000100", "-1", 1), strings.Replace(ours, `"u"`, `""`, 1),
		fmt.Sprintf(`{"aud":%q,"kubernetes.io":{"pod":{"name":"p","uid":"u"}}}`, v1alpha1.TokenAudience), `{"aud":["other"]}`, `{"aud":{}}`, `{"aud":null}`, `[]`, "null", "{", ours + ours} {
		f.Add([]byte(text), "")
	}
	for _, token := range []string{"..", "a.b.c", "a.b.c.d", "x", "." + base64.StdEncoding.EncodeToString([]byte(ours)) + ".", strings.Repeat("a", maxToken+1)} {
		f.Add([]byte(nil), token)
	}
	f.Fuzz(func(t *testing.T, text []byte, token string) {
		if len(text) > 0 {
			token = "header." + base64.RawURLEncoding.EncodeToString(text) + ".signature"
		}
		c, err := unverified(token, now)
		if err != nil {
			if s := status.Convert(err); s.Code() != codes.Unauthenticated && s.Code() != codes.PermissionDenied || s.Message() == "" ||
				len(s.Message()) > 1024 {
				t.Fatalf("refused with %s: %q", s.Code(), s.Message())
			}
			return
		}
		if len(token) > maxToken || strings.Count(token, ".") != 2 || !slices.Contains(c.Audience, v1alpha1.TokenAudience) ||
			c.Kubernetes.Pod.Name == "" ||
			c.Kubernetes.Pod.UID == "" {
			t.Fatalf("the API server would be asked about %+v", c)
		}
		if c.Expires > 0 && c.Expires < 1<<40 {
			if _, err := unverified(token, time.Unix(c.Expires+1, 0)); err == nil || c.Expires < now.Unix() {
				t.Fatalf("a token that expires at %d is taken", c.Expires)
			}
		}
	})
}
