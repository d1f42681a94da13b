"""The words of charts and pages in every language: one table, complete or it does not pass its test. Pure.

Figures, names and units are the same in all, and so is what a server says. Sentences of the analysis and of a run's log
come in English; `said` has them in the language.
"""

from __future__ import annotations

from dataclasses import dataclass

from .chinese import chinese, sentences

LANGUAGES = ("en", "zh")

# key → (English, Chinese); both with the same {placeholders}
TABLE: dict[str, tuple[str, str]] = {
    # axes
    "axis.in_flight": ("requests in flight", "并发请求数"),
    "axis.rate": ("requests/s asked for", "请求速率（请求/秒）"),
    "axis.conversations": ("conversations/s asked for", "会话速率（会话/秒）"),
    "axis.output": ("output tokens/s", "输出 token/s"),
    "axis.output_gpu": ("output tokens/s per GPU", "每 GPU 输出 token/s"),
    "axis.user": ("output tokens/s per user", "每用户输出 token/s"),
    "axis.cost": ("cost per million output tokens", "每百万输出 token 成本"),
    "axis.within": ("share of requests", "请求占比"),
    "axis.longer": ("share of gaps longer", "更长间隔的占比"),
    "axis.input": ("input tokens", "输入 token 数"),
    "axis.time": ("seconds since the start", "自开始起的秒数"),
    "axis.kv": ("KV cache (%)", "KV 缓存（%）"),
    "axis.failed": ("failed", "失败数"),
    "axis.share_failed": ("share of requests failed", "失败请求占比"),
    "axis.change": ("change against A (%)", "相对 A 的变化（%）"),
    # marks and legends
    "mark.answer": ("answer", "结论"),
    "mark.limit": ("likely limit", "可能的上限"),
    "mark.knee": ("knee", "拐点"),
    "mark.weak": ("interval not established", "置信区间未确立"),
    "mark.front": ("on the front", "在前沿上"),
    "mark.behind": ("behind it", "不在前沿上"),
    "mark.others": ("others", "其他"),
    "mark.all_loads": ("all loads", "全部负载"),
    "mark.better": ("better", "更好"),
    "mark.worse": ("worse", "更差"),
    "mark.open": ("not established", "未确立"),
    "legend.client": ("in flight, by the client", "客户端计数"),
    "legend.running": ("running, by the server", "服务器：运行中"),
    "legend.waiting": ("waiting, by the server", "服务器：排队中"),
    "legend.tokens": ("output tokens/s", "输出 token/s"),
    "legend.kv": ("KV cache in use", "KV 缓存占用"),
    "legend.failed": ("failed", "失败"),
    "legend.measured": ("measured p99", "实测 p99"),
    "legend.bound": ("error at most", "误差上限"),
    # verdicts
    "verdict.baseline": ("baseline", "基线"),
    "verdict.pass": ("pass", "通过"),
    "verdict.fail": ("fail", "未通过"),
    "verdict.marginal": ("marginal", "临界"),
    "verdict.inconclusive": ("inconclusive", "不确定"),
    "verdict.invalid": ("invalid", "无效"),
    "verdict.measured": ("measured", "已测"),
    "verdict.by_failures": ("(by failures)", "（因失败）"),
    "level.error": ("error", "错误"),
    "level.warning": ("warning", "警告"),
    "level.info": ("note", "说明"),
    # tables
    "table.step": ("step", "步骤"),
    "table.interval": ("95 % interval", "95% 区间"),
    "table.completed": ("requests/s", "请求/秒"),
    "table.window": ("window", "测量窗口"),
    "table.failed": ("failed", "失败"),
    "table.verdict": ("verdict", "判定"),
    "table.metric": ("metric", "指标"),
    "table.tail": ("tail [95 %] (ms)", "尾部 [95%]（ms）"),
    "table.percentile": ("of", "分位"),
    "table.front": ("front", "前沿"),
    "table.max": ("largest (ms)", "最大值（ms）"),
    "table.when": ("seconds", "时间（秒）"),
    "table.mean_in_flight": ("in flight, mean", "平均并发"),
    "table.kind": ("kind", "类型"),
    "table.count": ("count", "数量"),
    "table.share": ("share", "占比"),
    "table.bound": ("error at most (ms)", "误差上限（ms）"),
    "table.of_it": ("of p99", "占 p99"),
    "table.cpu": ("client CPU", "客户端 CPU"),
    "table.lag": ("loop lag p99 (ms)", "事件循环滞后 p99（ms）"),
    "table.bucket": ("bucket", "分桶"),
    "table.figures": ("The figures as a table", "以表格显示数据"),
    "table.condition": ("condition", "条件"),
    "table.run": ("run", "运行"),
    "table.change": ("change [95 %]", "变化 [95%]"),
    "table.result": ("result", "结果"),
    "table.thinned": (
        "{shown} of {all} rows are shown; loadgen export writes all of them.",
        "仅显示 {all} 行中的 {shown} 行；loadgen export 可导出全部。",
    ),
    # buckets
    "bucket.input": ("input tokens", "输入 token 数"),
    "bucket.output": ("output tokens", "输出 token 数"),
    "bucket.concurrency": ("load", "负载"),
    "bucket.time": ("time", "时间"),
    "bucket.model": ("model", "模型"),
    "bucket.peer": ("address", "地址"),
    "bucket.turn": ("turn", "轮次"),
    "bucket.cached": ("cached share", "缓存占比"),
    # titles and captions
    "title.throughput": ("Throughput against load", "吞吐量与负载"),
    "title.latency": ("Latency against load", "延迟与负载"),
    "title.pareto": ("What a user gets against what the server gives", "每用户速度与总吞吐量（帕累托）"),
    "title.timeline": ("Over time", "时间线"),
    "title.distributions": ("Latency distributions", "延迟分布"),
    "title.itl": ("Gaps between tokens (ITL)", "token 间隔（ITL）"),
    "title.input": ("TTFT against input length", "TTFT 与输入长度"),
    "title.buckets": ("By what requests were like", "按请求特征分桶"),
    "title.failures": ("Failures", "失败"),
    "title.instrument": ("The instrument's own error", "测量工具自身的误差"),
    "title.differences": ("Differences against A", "相对 A 的差异"),
    "caption.throughput": (
        "Completed requests: n {n}; steps: {steps}. Bars: 95 % intervals.",
        "共 {steps} 个步骤，n = {n} 个已完成请求。竖线：95% 置信区间。",
    ),
    "caption.knee": (
        "Dotted: growth as at the lightest load, and the highest throughput; they meet at the knee, {knee} in flight.",
        "虚线：按最轻负载线性增长，以及最高吞吐量；二者交于拐点（并发 {knee}）。",
    ),
    "caption.band": (
        "Shaded: the loads at which {objective} stays within 5 % of its limit.",
        "底色：{objective} 与其限值相差不到 5 % 的负载区间。",
    ),
    "caption.void": (
        "Hollow diamonds and crosses: steps in which this client was the limit; they are not counted.",
        "空心菱形与叉：该步骤中客户端是瓶颈，不计入。",
    ),
    "caption.latency": (
        "Completed requests: n {n}; steps: {steps}, each of {span}. Bars: 95 % intervals on the effective"
        " sample; hollow points have too small a sample for one.",
        "共 {steps} 个步骤，n = {n} 个已完成请求，每步 {span} 个。"
        "竖线：有效样本的 95% 置信区间；空心点的样本不足以确立区间。",
    ),
    "caption.span": ("{least} to {most}", "{least} 至 {most}"),
    "caption.pareto": (
        "Completed requests: n {n}; steps: {steps}, joined by rising load; each point is labelled with its load."
        " tokens/s per user is 1000 / median TPOT.",
        "共 {steps} 个步骤，n = {n} 个已完成请求；按负载递增连接，点旁为负载。每用户 token/s = 1000 / TPOT 中位数。",
    ),
    "caption.gpus": ("Divided by {gpus} GPUs, as told.", "按给定的 {gpus} 个 GPU 均分。"),
    "caption.price": ("At {price} for a GPU and hour, as told.", "按给定的每 GPU 小时 {price} 计算。"),
    "caption.timeline": (
        "Requests of all phases: n {n}, in {bins} equal bins; shaded by step.",
        "n = {n} 个请求（所有阶段），分为 {bins} 个等长区间；底色区分步骤。",
    ),
    "caption.server": (
        "The server's figures are its own metrics, read during the run.",
        "服务器数据来自运行期间读取的其自身指标。",
    ),
    "caption.distributions": (
        "Completed requests: n {n}; steps: {steps}, a line for each load, the stronger the heavier.",
        "共 {steps} 个步骤，n = {n} 个已完成请求；每条线为一个负载，颜色越强负载越高。",
    ),
    "caption.itl": (
        "Gaps: n {n}; steps: {steps}. The share of gaps longer than so many ms. A shelf far to the right is a stall.",
        "共 {steps} 个步骤，n = {n} 个间隔：长于给定毫秒数的间隔占比。右侧远处的平台表示停顿。",
    ),
    "caption.estimated": (
        "Events did not tell their tokens: the gaps are estimated.",
        "事件未给出 token 数：间隔为估计值。",
    ),
    "caption.thinned": ("{shown} of {steps} steps are drawn.", "绘出 {steps} 个步骤中的 {shown} 个。"),
    "caption.input": (
        "Completed requests: n {n}; loads: {steps}; {drawn} of them drawn one by one; lines join the medians of"
        " groups of as many requests each.",
        "{steps} 个负载，n = {n} 个已完成请求，逐点绘出 {drawn} 个；折线连接数量相近各组的中位数。",
    ),
    "caption.bucketed": ("Completed requests, {where}: n {n}.", "{where}：n = {n} 个已完成请求。"),
    "caption.buckets": (
        "Sorted by powers of two. A cell below {least} effective requests shows its n alone.",
        "按 2 的幂分桶。有效请求少于 {least} 的格只显示 n。",
    ),
    "caption.failures": ("{failed} of {n} measured requests failed.", "{n} 个测量请求中有 {failed} 个失败。"),
    "caption.instrument": (
        "The most that this client can have moved a p99, beside that p99. Completed requests: n {n}; steps: {steps}.",
        "本客户端对 p99 的最大影响与该 p99 的对比。共 {steps} 个步骤，n = {n} 个已完成请求。",
    ),
    "caption.several": (
        "Completed requests: n {n}; runs: {runs}. Bars: 95 % intervals.",
        "共 {runs} 个运行，n = {n} 个已完成请求。竖线：95% 置信区间。",
    ),
    "caption.count": ("Completed requests: n {n}; runs: {runs}.", "共 {runs} 个运行，n = {n} 个已完成请求。"),
    "caption.differences": (
        "Bars: 95 % intervals of the change. Primary questions are judged together by Holm's rule, the others each for"
        " itself.",
        "横线：变化的 95% 区间。主要问题按 Holm 方法联合判断，其余各自判断。",
    ),
    # the page
    "page.report": ("Load test report", "负载测试报告"),
    "page.comparison": ("Comparison of load tests", "负载测试对比"),
    "page.skip": ("Skip to the answer", "跳到结论"),
    "page.contents": ("Contents", "目录"),
    "page.answer": ("Answer", "结论"),
    "page.steps": ("Steps", "步骤"),
    "page.charts": ("Charts", "图表"),
    "page.findings": ("Findings", "发现"),
    "page.error": ("How wrong it can be", "误差有多大"),
    "page.conditions": ("Conditions", "测试条件"),
    "page.parts": ("By model, address and turn", "按模型、地址与轮次"),
    "page.definitions": ("Definitions", "术语定义"),
    "page.differences": ("What differs", "差异"),
    "page.runs": ("Runs", "运行"),
    "page.made": ("Made by loadgen {version} from {source}", "由 loadgen {version} 根据 {source} 生成"),
    "page.offline": (
        "This page holds all it needs; it loads nothing and runs no script.",
        "本页自包含：不加载任何外部内容，也不运行脚本。",
    ),
    "page.hover": (
        "A point tells its figures under the pointer; the table below each chart has them all.",
        "鼠标悬停于点上可见其数值；每个图下方的表格列出全部数据。",
    ),
    "page.not_drawn": ("This run has nothing for: {charts}.", "本次运行没有以下图表所需的数据：{charts}。"),
    "page.nothing": ("No request was measured.", "没有测量到任何请求。"),
    "page.evidence": ("Evidence", "依据"),
    "page.colon": (": ", "："),
    "page.label": ("{title}. {caption}", "{title}。{caption}"),
    "page.fact": ("{what}: {value}", "{what}：{value}"),
    "page.try": ("Try", "建议"),
    "page.no_findings": ("Nothing out of the ordinary was found.", "未发现异常。"),
    "page.no_error": (
        "This log does not tell how its client fared: how far its stamps can be off is not known.",
        "该日志未记录客户端状况：其时间戳的误差未知。",
    ),
    "page.error_bound": (
        "The client added at most {parts}.",
        "客户端带来的误差上限：{parts}。",
    ),
    "page.error_part": ("{ms} ms to any p99 {metric}", "任一 p99 {metric} 不超过 {ms} ms"),
    "page.refused": ("Not compared", "未做比较"),
    "page.changed_one": (
        "One main variable was changed: {name}. Whatever differs, as far as is told, is by that.",
        "只有一个主要变量不同：{name}。就已知条件而言，差异由其引起。",
    ),
    "page.changed_none": (
        "No main variable that all of them tell was changed.",
        "在各运行均已知的主要变量中，没有不同之处。",
    ),
    "page.changed_many": (
        "{n} main variables were changed ({names}): what each of them did cannot be told apart.",
        "有 {n} 个主要变量不同（{names}）：无法区分各自的影响。",
    ),
    "page.unknown": ("Unknown, and so perhaps different: {names}.", "未知、因此可能不同：{names}。"),
    # the answer
    "answer.loads": (
        "{n} loads were measured, from {low} to {high}; the log holds no answer of its own.",
        "测量了 {n} 个负载，从 {low} 到 {high}；日志本身没有结论。",
    ),
    "answer.log": (
        "{n} requests were measured; the log does not tell at which load.",
        "测量了 {n} 个请求；日志未记录负载。",
    ),
    "answer.held_only": (
        "At {held} every objective holds, and no load measured is proven to break one.",
        "{held}满足所有目标，且没有测得的负载被证实违反目标。",
    ),
    "answer.held_broke": (
        "At {held} every objective holds, at {broke} not ({objectives}).",
        "{held}满足所有目标，{broke}不满足（{objectives}）。",
    ),
    "answer.and": (", ", "、"),
    "answer.broke_only": ("{broke} break {objectives}.", "{broke}违反 {objectives}。"),
    "answer.again": (
        "Above that, {loads} hold every objective again.",
        "更高的负载中，{loads}又满足所有目标。",
    ),
    "answer.broke": (
        "No load measured holds: at {broke} the objectives do not ({objectives}).",
        "没有负载满足目标：{broke}违反 {objectives}。",
    ),
    "answer.peak": ("The highest output throughput is {peak} tokens/s.", "最高输出吞吐量为 {peak} token/s。"),
    "answer.measured": ("Measured: {load}.", "已测量：{load}。"),
    "answer.in_flight_one": ("{n} concurrent request", "{n} 个并发请求"),
    "answer.in_flight": ("{n} concurrent requests", "{n} 个并发请求"),
    "answer.conversations": ("{n} conversations/s", "每秒 {n} 个会话"),
    "answer.per_second": ("{n} requests/s", "每秒 {n} 个请求"),
    "answer.stopped": ("The run ended by: {reason}.", "运行结束原因：{reason}。"),
    "answer.failed": ("{failed} of {n} measured requests failed.", "{n} 个测量请求中有 {failed} 个失败。"),
    "answer.at": ("at {load}", "{load}时"),
    "answer.differs": ("{run}: {what} {change}, {result}.", "{run}：{what} {change}，{result}。"),
    "answer.values": (" ({a} → {b} {unit})", "（{a} → {b} {unit}）"),
    "answer.same": (
        "No difference between A and {run} is established in the primary figures.",
        "A 与 {run} 的主要指标之间未确立差异。",
    ),
    "answer.no_load": ("No load was measured by both A and {run}.", "A 与 {run} 没有共同测量的负载。"),
    "state.same": ("same", "相同"),
    "state.changed": ("changed", "不同"),
    "state.unknown": ("unknown", "未知"),
    "card.output": ("output tokens/s", "输出 token/s"),
    "card.rate": ("requests/s", "请求/秒"),
    "card.user": ("tokens/s per user", "每用户 token/s"),
    "card.failed": ("failed", "失败"),
    "card.of_one": ("of {n} request", "共 {n} 个请求"),
    "card.of": ("of {n} requests", "共 {n} 个请求"),
    "card.n": ("n {n}", "n = {n}"),
    "card.weak": ("interval not established, n {n}", "区间未确立，n = {n}"),
    # conditions
    "fact.target": ("target", "目标"),
    "fact.server": ("server", "服务器"),
    "fact.model": ("model", "模型"),
    "fact.context": ("context length", "上下文长度"),
    "fact.workload": ("workload", "工作负载"),
    "fact.objectives": ("objectives", "目标（SLO）"),
    "fact.seed": ("seed", "随机种子"),
    "fact.clock": ("clock", "时钟"),
    "fact.status": ("status", "状态"),
    "fact.requests": ("requests in the log", "日志中的请求"),
    "fact.started": ("started", "开始时间"),
    "fact.definitions": ("definitions", "定义版本"),
    "fact.host": ("client", "客户端"),
    "fact.limit": ("the limit", "瓶颈"),
    "fact.stop": ("stop reason", "停止原因"),
    "fact.describe": ("described as", "说明"),
    "fact.attainment": ("attainment {share}", "达标率 {share}"),
    "fact.unknown": ("unknown", "未知"),
    "fact.of_them_failed": ("{n}, {failed} failed", "{n}，失败 {failed}"),
    # definitions
    "define.ttft": (
        "Time to first token: from the first byte of the request sent to the first event that carries output.",
        "首 token 时间：从发出请求的首字节到首个带输出的事件。",
    ),
    "define.tpot": (
        "Time per output token: from the first to the last token, divided by the tokens after the first event.",
        "每输出 token 时间：首个到末个 token 的时长除以首个事件之后的 token 数。",
    ),
    "define.itl": (
        "Inter-token latency: each gap between events, divided by the tokens it brought, once per token.",
        "token 间延迟：相邻事件的间隔除以其带来的 token 数，每个 token 计一次。",
    ),
    "define.e2e": (
        "End to end: from the first byte sent to the last token.",
        "端到端：从发出首字节到最后一个 token。",
    ),
    "define.output": (
        "Output tokens that arrived in the steady window, divided by its length; of completed requests and of those"
        " cut by the end.",
        "稳定窗口内到达的输出 token 数除以窗口长度；含完成的请求与因结束而截断的请求。",
    ),
    "define.failed": (
        "A failed request enters no latency; in a verdict it counts as infinitely late.",
        "失败的请求不计入任何延迟；在判定中视为无限迟。",
    ),
    "define.interval": (
        "Intervals are two-sided, 95 %, on the effective sample: requests that share a batch share their fate.",
        "置信区间为双侧 95%，基于有效样本：同批请求并不独立。",
    ),
}

# What a diagnosis names, by its cause, in Chinese: in English it is the diagnosis' own title.
CAUSES_ZH: dict[str, str] = {
    "client_bound": "客户端是瓶颈",
    "gateway_limit": "网关中断或拒绝请求",
    "admission_limit": "服务器前的准入限制",
    "requests_failing": "请求失败",
    "buffering_proxy": "输出被缓冲、成批到达",
    "prefix_cache_contaminated": "前缀缓存受到污染",
    "short_outputs": "回答短于要求",
    "communication": "GPU 间通信等待",
    "prefix_cache": "前缀缓存生效",
    "speculation": "一次到达多个 token（推测解码）",
    "kv_exhausted": "KV 缓存耗尽",
    "overload": "过载",
    "network": "网络或途中环节",
    "batch_limit": "批大小限制",
    "queueing": "请求在运行前排队",
    "long_prompts": "长提示阻塞其他请求",
    "prefill_bound": "预填充是瓶颈",
    "decode_bound": "解码是瓶颈",
    "out_of_reach": "任何负载都无法满足目标",
    "unsteady": "步骤不稳定",
    "unidentified": "未确定原因",
}


@dataclass(frozen=True, slots=True)
class Words:
    """The table in one language: `words("caption.gpus", gpus=8)`."""

    language: str = "en"

    def __call__(self, key: str, **values: object) -> str:
        text = TABLE[key][LANGUAGES.index(self.language)]
        return text.format(**values) if values else text

    def said(self, text: str) -> str:
        """A sentence of the analysis, or a part of one; as it is where the language has none for it."""
        return (chinese(text) or text) if self.language == "zh" else text

    def answered(self, text: str) -> str | None:
        """The sentences of an answer; None where the language has none for one of them."""
        return sentences(text) if self.language == "zh" else text

    def told(self, text: str) -> str:
        """The same of several between dots."""
        return " · ".join(map(self.said, text.split(" · ")))

    def sentences(self, *texts: str) -> str:
        """One after the other."""
        return ("" if self.language == "zh" else " ").join(texts)

    def cause(self, name: str, title: str) -> str:
        """The title of a diagnosis' cause."""
        return CAUSES_ZH.get(name, title) if self.language == "zh" else title


ENGLISH = Words()
