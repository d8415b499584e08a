"""Hand a decode's progress to a streamer: drafts of the current block, kept tokens of finished ones."""

from transformers.generation.streamers import BaseStreamer

from .rows_mrp import Rows


class RowStreamer:
    """Feeds one row's tokens to a transformers streamer, each kept token exactly once.

    Args:
        streamer (`BaseStreamer`): anything with `put` and `end`; `put_draft` (as of `TextDiffusionStreamer`) is called
            where it exists, with the new tokens of the block being denoised, mask tokens included.
        rows (`Rows`): a batch of one row.
    """

    def __init__(self, streamer: BaseStreamer, rows: Rows):
        self.streamer, self.rows = streamer, rows
        self.sent = int(rows.prompt_lengths[0])
        streamer.put(rows.tokens[:1, : self.sent].cpu())

    def update(self) -> None:
        """Send what the last round finished, then what it drafted."""
        rows = self.rows
        finished = int(rows.prompt_lengths[0] + rows.new_tokens()[1][0])
        if rows.active[0]:
            finished = min(finished, int(rows.finished_length[0]))
        if finished > self.sent:
            self.streamer.put(rows.tokens[0, self.sent : finished].cpu())
            self.sent = finished
        if rows.active[0] and hasattr(self.streamer, "put_draft"):
            end = min(int(rows.finished_length[0]) + rows.block_length, int(rows.limits[0]))
            self.streamer.put_draft(rows.tokens[0, self.sent : end].cpu())
