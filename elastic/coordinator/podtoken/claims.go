package podtoken

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// maxToken bounds the size of a token; a service account's has about 1 KiB.
const maxToken = 16 << 10

// claims are the unverified content of a token. They prove nothing: they only save queries to the API server.
type claims struct {
	Audience   audiences `json:"aud"`
	Expires    int64     `json:"exp"`
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       struct {
			Name string    `json:"name"`
			UID  types.UID `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// audiences are one string or several (RFC 7519, 4.1.3).
type audiences []string

func (a *audiences) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(a))
}

var errNoToken = status.Error(codes.Unauthenticated, "the token does not belong to a service account")

// unverified returns the claims of a token, or an error unless it is a pod's, for this audience, and not expired.
func unverified(token string, now time.Time) (claims, error) {
	var c claims
	parts := strings.SplitN(token, ".", 4)
	if len(token) > maxToken || len(parts) != 3 {
		return c, errNoToken
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	switch {
	case err != nil:
		return c, errNoToken
	case !slices.Contains(c.Audience, v1alpha1.TokenAudience):
		return c, status.Errorf(codes.Unauthenticated, "the token is not for audience %s", v1alpha1.TokenAudience)
	case c.Expires > 0 && now.Unix() > c.Expires:
		return c, status.Error(codes.Unauthenticated, "the token has expired")
	case c.Kubernetes.Pod.Name == "" || c.Kubernetes.Pod.UID == "":
		return c, status.Error(codes.PermissionDenied, "the token is not bound to a pod: use a projected service account token")
	}
	return c, nil
}
