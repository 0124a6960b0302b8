package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
)

func nodeCheckStatus(c *elastic.Check) *v1alpha1.NodeCheck {
	if c.Before == 0 {
		return nil
	}
	return &v1alpha1.NodeCheck{
		Generation: c.Before, StartedAt: metav1.NewMicroTime(c.Began), EndedAt: microTime(c.Ended), Result: string(c.Result),
		Replaced: int32(c.Replaced), Message: c.Text,
	}
}

func plainNodeCheck(c *v1alpha1.NodeCheck) elastic.Check {
	if c == nil {
		return elastic.Check{}
	}
	return elastic.Check{
		Before: c.Generation, Began: c.StartedAt.Time, Ended: plainTime(c.EndedAt), Result: elastic.CheckResult(c.Result),
		Replaced: int(c.Replaced), Text: c.Message,
	}
}
