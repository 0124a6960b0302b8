package plugin

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/plugin/external"
)

// inspect handles state that no event reports: plans that members do not follow, for instance because another plugin gates them; gangs that
// hold nodes and never complete; members that are missing because they succeeded.
func (p *Plugin) inspect(ctx context.Context) { p.inspectAt(ctx, time.Now()) }

func (p *Plugin) inspectAt(ctx context.Context, now time.Time) {
	logger := klog.FromContext(ctx)
	p.noteStuck(logger, now)
	p.preemption.Lapse(logger, now)
	for _, key := range p.gangs.Overdue(now.Add(-p.args.PlanTimeout.Duration)) {
		p.abandon(logger, key, "members did not follow the plan in time")
	}
	for _, key := range p.gangs.Idle(now.Add(-inspection)) {
		p.wake(logger, key)
	}
	for _, l := range p.gangs.SweepLapsed(now, p.args.InitialPlacementTimeout.Duration) {
		logger.Info("Rolling back a gang that was never fully placed", "gang", l.Key, "reason", l.Why, "pods", len(l.RollBack))
		p.rollBack(ctx, l.Key, l.RollBack, l.Why)
		p.status.soon(l.Key)
	}
	for _, q := range p.gangs.SweepUnexplained() {
		ended, err := external.Succeeded(ctx, p.handle.ClientSet(), q.Key, q.Member)
		if err != nil {
			logger.Info("Querying which members of a gang succeeded; will be retried", "gang", q.Key, "reason", err)
			continue
		}
		if p.gangs.Explain(q, ended).Completed {
			p.wake(logger, q.Key)
		}
		p.status.soon(q.Key)
	}
}
