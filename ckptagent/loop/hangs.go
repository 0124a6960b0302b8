//go:build linux

package loop

import (
	"os"
	"path/filepath"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/hangs"
	"holdfast.dev/holdfast/ckptagent/watch"
)

// keepEvidence writes files about the ranks in another goroutine, posts Kept, and then has them copied to storage.
func (a *Agent) keepEvidence(e ckptagent.KeepEvidence) {
	ranks, world := a.watched()
	to := watch.Evidence{
		Generation: e.Generation, Base: a.state.Run.BaseRank, Ranks: len(a.state.Rank), Bytes: hangs.BytesPerRank(len(a.state.Rank)),
	}
	folder, h := hangs.Folder(a.c.Root.Hangs()), hangs.Hang{Generation: e.Generation, Look: e.Number}
	watcher, uploader := a.watcher, a.uploader
	go func() {
		err := folder.Keep(h, func(dir string) error {
			to.Dir = dir
			return watcher.Keep(ranks, world, to)
		})
		a.post(ckptagent.Kept{Number: e.Number})
		if err != nil {
			a.logf("keeping files about ranks that stand still: %v", err)
			return
		}
		a.logf("files about ranks that stand still: %s", folder.Path(h))
		if uploader != nil {
			uploader.prunesHangs.Store(to.Base == 0)
			uploader.hangKept()
		}
	}()
}

// hangKept has the hangs of this pod copied to storage.
func (k *uploader) hangKept() {
	select {
	case k.hangsKept <- struct{}{}:
	default: // it will see this one as well
	}
}

// copyHangs copies to storage what this pod keeps of hangs, at the start and after each hang. What was copied is removed from the pod.
func (k *uploader) copyHangs(folder hangs.Folder) {
	for {
		for _, h := range folder.List() {
			if err := k.copyHang(folder, h); err != nil {
				k.logf("copying %s to storage; the files stay in the pod: %v", folder.Path(h), err)
			}
		}
		if k.prunesHangs.Load() {
			if err := k.store.PruneHangs(); err != nil {
				k.logf("removing old hangs from storage: %v", err)
			}
		}
		<-k.hangsKept
	}
}

func (k *uploader) copyHang(folder hangs.Folder, h hangs.Hang) error {
	files, err := os.ReadDir(folder.Path(h))
	if err != nil {
		return err
	}
	for _, f := range files {
		in, err := os.Open(filepath.Join(folder.Path(h), f.Name()))
		if err != nil {
			return err
		}
		err = k.store.PutHang(h, f.Name(), in)
		in.Close()
		if err != nil {
			return err
		}
	}
	k.logf("files about ranks that stood still: %s in storage", k.store.HangFolder(h))
	return os.RemoveAll(folder.Path(h))
}
