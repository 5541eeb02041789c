from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.jobs import patterns
from gpuchaos_agent.jobs.progress import READ_PER_TICK, AppLog


def read(tmp_path: Path, *texts: str) -> AppLog:
    path = tmp_path / "job.log"
    path.write_text("")
    log = AppLog(path)
    for now, text in enumerate(texts, start=1):
        with path.open("a") as file:
            file.write(text)
        log.poll(float(now))
    return log


LINES = [
    # Megatron-LM
    (
        (
            " iteration      240/   90000 | consumed samples:        30720 | elapsed time per iteration (ms): 4321.5 | "
            "learning rate: 1.200E-04 | lm loss: 4.125000E+00 | loss scale: 1.0 | grad norm: 0.512 |"
        ),
        (240, 4.3215, 4.125, None),
    ),
    # DeepSpeed
    (
        "[INFO] [logging.py:107:log_dist] [Rank 0] step=70, skipped=0, lr=[2e-05], mom=[(0.9, 0.95)]",
        (70, None, None, None),
    ),
    ("steps: 90 loss: 3.1250 iter time (s): 0.750 samples/sec: 42.667", (90, 0.75, 3.125, None)),
    # Hugging Face
    ("{'loss': 1.75, 'grad_norm': 0.9, 'learning_rate': 3e-05, 'epoch': 0.2}", (None, None, 1.75, None)),
    (" 12%|█▏        | 60/500 [00:30<03:40,  4.00it/s]", (60, 0.25, None, None)),
    (" 12%|█▏        | 60/500 [00:30<03:40,  1.25s/it]", (60, 1.25, None, None)),
    # Lightning and NeMo
    ("Epoch 7:  30%|███       | 300/1000 [02:30<05:50,  2.00it/s, v_num=4, train_loss=0.875]", (300, 0.5, 0.875, None)),
    (
        "Epoch 0: :  3%|▎  | 1500/50000 [1:00:00<9:00:00,  0.50it/s, reduced_train_loss=6.250, global_step=1.5e+3]",
        (1500, 2.0, 6.25, None),
    ),
    (
        (
            "Training epoch 0, iteration 19/99 | lr: 2e-4 | global_batch_size: 32 | global_step: 19 | "
            "reduced_train_loss: 8.5 | train_step_timing in s: 1.25 | consumed_samples: 640"
        ),
        (19, 1.25, 8.5, None),
    ),
    # torchtitan, in colours
    (
        (
            "[rank0]:[titan] 2025-03-01 09:00:00,001 - root - INFO - \x1b[31mstep: 30  \x1b[32mloss:  5.1250  "
            "\x1b[33mmemory: 61.00GiB(76.5%)  \x1b[34mtps: 7,654  \x1b[35mmfu: 41.20%\x1b[39m"
        ),
        (30, None, 5.125, 7654.0),
    ),
    # nanoGPT
    ("iter 810: loss 2.7500, time 312.50ms, mfu 33.20%", (810, 0.3125, 2.75, None)),
    ("step 1000: train loss 2.5000, val loss 2.6250", (1000, None, 2.5, None)),
    # Composer
    ("[epoch=2][batch=45/400]:", (45, None, None, None)),
    ("\t Train loss/train/total: 9.7500", (None, None, 9.75, None)),
    ("\t Train throughput/tokens_per_sec: 54321.5", (None, None, None, 54321.5)),
    # MaxText
    (
        "completed step: 55, seconds: 2.500, TFLOP/s/device: 180.2, Tokens/s/device: 3276.8, loss: 7.500",
        (55, 2.5, 7.5, 3276.8),
    ),
    # fairseq
    ('{"epoch": 2, "loss": "4.5", "num_updates": "700", "wps": "23456.5", "ups": "1.2"}', (700, None, 4.5, 23456.5)),
    # OLMo
    ("[step=33/2000]", (33, None, None, None)),
    ("    throughput/device/tokens_per_second=11,250", (None, None, None, 11250.0)),
    # timm, MMEngine
    ("Train: 4 [ 250/1251 ( 20%)]  Loss: 3.500 (3.75)  Time: 0.250s, 1024.00/s", (250, 0.25, 3.5, None)),
    (
        "mmengine - INFO - Epoch(train)  [3][ 150/1000]  lr: 1e-3  time: 0.3750  data_time: 0.01  loss: 0.6250",
        (150, 0.375, 0.625, None),
    ),
    # Keras
    ("200/500 [===========>..................] - ETA: 9s - loss: 0.3750", (200, None, 0.375, None)),
    ("200/500 ━━━━━━━━━━━━━━━━━━━━ 9s 30ms/step - loss: 0.3750", (200, 0.03, 0.375, None)),
    ('{"current_steps": 15, "total_steps": 150, "loss": 0.25, "lr": 1e-05}', (15, None, 0.25, None)),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_the_forms_of_common_loggers_are_read(
    tmp_path: Path, line: str, expected: tuple[float | None, float | None, float | None, float | None]
) -> None:
    log = read(tmp_path, "", line + "\n")
    found = (log.step, log.step_time, log.loss, log.tokens_rate())
    assert found == tuple(None if value is None else pytest.approx(value) for value in expected)


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint shards: 100%|██████████| 8/8 [00:10<00:00,  1.25s/it]",
        "Map: 100%|██████████| 2000/2000 [00:05<00:00, 400.0it/s]",
        "  Total optimization steps = 2,400",
        "  Gradient Accumulation steps = 16",
        "max_steps: 900, warmup_steps: 90",
        "time per step: 0.25",
        "eval_loss: 2.5",
        "stepping stones",
    ],
)
def test_settings_and_other_bars_are_no_progress(tmp_path: Path, line: str) -> None:
    log = read(tmp_path, "", line + "\n")
    assert (log.step, log.loss) == (None, None)


def test_a_bar_is_followed_while_it_is_drawn_over(tmp_path: Path) -> None:
    log = read(tmp_path, "", "\r  2%|▏| 1/50 [00:01<00:49,  1.00it/s]\r  4%|▍| 2/50 [00:02<00:48,  1.00it/s]\r")
    assert log.step == 2


def test_a_loss_that_is_no_number_is_not_the_last_one_that_was(tmp_path: Path) -> None:
    log = read(tmp_path, "step=1 loss=2.5\n")
    assert log.loss == 2.5
    log = read(tmp_path, "step=1 loss=2.5\n", "step=2 loss=nan\n")
    assert (log.step, log.loss) == (2, None)


def test_the_step_never_goes_back_while_a_flood_is_read_up(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("")
    log = AppLog(path)
    log.poll(0.0)
    with path.open("a") as file:
        for step in range(20_000):
            file.write(f"step={step} {'words ' * 10}\n")
    seen = []
    for now in range(1, 12):
        log.poll(float(now))
        seen.append(log.step)
    assert path.stat().st_size > 4 * READ_PER_TICK
    assert seen[0] == 19_999
    assert set(seen) == {19_999}
    assert log.progress_age(11.0) == 10.0


@given(
    st.sampled_from(
        ["step ", "loss: ", "tokens/s: ", "  5%|", "Epoch 1: 5%|█| 1/2 [", "iter 1: loss ", " 1/2 ", "Time: "]
    ),
    st.text(alphabet="0123456789.,=:| %[]eE-+\r\t abloss", max_size=40),
    st.integers(1, 400),
)
def test_no_pattern_is_slow(head: str, repeated: str, times: int) -> None:
    text = (head + repeated * times)[: 4 * 1024].encode()
    for pattern in (*patterns.STEPS, *patterns.TIMES, *patterns.LOSSES, *patterns.TOKENS):
        began = time.process_time()
        pattern.text.findall(text)
        assert time.process_time() - began < 0.05
