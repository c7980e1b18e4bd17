"""A data set whose images are shifted by group as they are taken out of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.datasets import LabelledDataset, TextDataset
from shoal.data.federation import Examples
from shoal.data.shifts import Group


@dataclass(frozen=True, eq=False)
class ShiftedDataset:
    """The examples of a data set as inputs of a network: images scaled to [0, 1] and shifted, texts as they are.

    An image's shift depends on its index in the data set, its group and the stream only.
    """

    dataset: LabelledDataset
    groups: tuple[Group, ...]
    stream: Stream

    def inputs(self, indices: Tensor, group: Tensor) -> Tensor:
        """The images at ``indices`` (m,), shifted by their ``group`` (m,): (m, C, H, W) float32, channels last.

        Of texts the words, unchanged: (m, L) int64.
        """
        if isinstance(self.dataset, TextDataset):
            return self.dataset.words[indices]
        uniform = torch.rand(len(self.dataset.labels), 2, generator=self.stream("shift").generator())
        _, channels, height, width = self.dataset.pixels.shape
        shifted = torch.empty(len(indices), height, width, channels).permute(0, 3, 1, 2)
        for g, kind in enumerate(self.groups):
            of_group = torch.nonzero(group == g).squeeze(1)
            images = self.dataset.pixels[indices[of_group]].float() / self.dataset.white
            shifted[of_group] = kind.shift(images, uniform[indices[of_group]])
        return shifted

    def examples(self, indices: Tensor, counts: list[int]) -> Examples:
        """The examples at ``indices`` (m,): the first ``counts[0]`` are of group 0, the next of group 1, and so on."""
        group = torch.repeat_interleave(torch.arange(len(self.groups)), torch.tensor(counts))
        return Examples(self.inputs(indices, group), self.dataset.labels[indices], group)
