"""Made-up conversations for chat templates: the same ones for the same seed."""
import json
import random

WORDS = ["sea", "Ünïcödé", "日本語", "🙂", "it's", 'a "quote"', "back\\slash", "tab\t", "<b>", "x < y && z > 1",
         "{{ not }}", "{% a %}", "<|im_start|>", "<|im_end|>", "</s>", "[INST]", "<think>", "</think>",
         "<tool_call>", "<|start_header_id|>", "<｜User｜>", "\n\n", "- item\n- item", "1.5e3", "None",
         "{\"a\": 1}", "/no_think", "a/b", "50%", "#", "trailing ", " leading", "\u200b", "end."]
NAMES = ["get_weather", "search", "items", "keys", "add-numbers", "functions.run"]
VALUES = ["Paris", "", 7, -2.5, 1e-7, True, None, ["a", 1], {"k": "v", "items": []}, "line\nbreak", "é<'>\""]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, share):
        return self.random.random() < share

    def text(self):
        if self.chance(0.06):
            return ""
        size = self.random.choice([1, 3, 8, 200 if self.chance(0.05) else 5])
        return self.random.choice([" ", " ", "\n"]).join(self.random.choices(WORDS, k=size))

    def parameters(self):
        properties = {}
        for name in self.random.sample(["city", "items", "keys", "unit", "values", "limit"], k=self.random.randint(0, 4)):
            kind = self.random.choice(["string", "integer", "number", "boolean", "array", "object"])
            properties[name] = {"type": kind, "description": self.text()}
            if kind == "array" and self.chance(0.7):
                properties[name]["items"] = {"type": "string"}
            if kind == "string" and self.chance(0.4):
                properties[name]["enum"] = ["a", "b c"]
            if self.chance(0.2):
                properties[name]["default"] = self.random.choice(VALUES)
        return {"type": "object", "properties": properties,
                "required": sorted(self.random.sample(list(properties), k=len(properties) // 2))}

    def tools(self):
        return [{"type": "function", "function": {
            "name": name, "description": self.text(), "parameters": self.parameters()}}
            for name in self.random.sample(NAMES, k=self.random.randint(1, 3))]

    def calls(self, tools, turn):
        made = []
        for i in range(self.random.choice([1, 1, 2])):
            name = self.random.choice(tools)["function"]["name"]
            arguments = {key: self.random.choice(VALUES)
                         for key in self.random.sample(["city", "items", "x y", "keys"], k=self.random.randint(0, 3))}
            made.append({"id": f"call{turn:03}{i:02}", "type": "function",
                         "function": {"name": name, "arguments": arguments}})
        return made

    def conversation(self):
        """Messages and tools (None: none)."""
        tools = self.tools() if self.chance(0.5) else None
        messages = [{"role": "system", "content": self.text()}] if self.chance(0.4) else []
        for turn in range(self.random.choice([1, 1, 2, 3, 6])):
            messages.append({"role": "user", "content": self.text()})
            if self.chance(0.2):
                break
            if tools and self.chance(0.6):
                calls = self.calls(tools, turn)
                messages.append({"role": "assistant", "tool_calls": calls,
                                 "content": self.random.choice([None, "", self.text()])})
                for call in calls:
                    messages.append({"role": "tool", "tool_call_id": call["id"],
                                     "name": call["function"]["name"],
                                     "content": self.random.choice([self.text(), json.dumps(VALUES)])})
                if self.chance(0.2):
                    break
            answer = {"role": "assistant", "content": self.text()}
            if self.chance(0.3):
                answer["reasoning_content"] = self.text()
            if self.chance(0.2):
                answer["content"] = f"<think>\n{self.text()}\n</think>\n\n{self.text()}"
            messages.append(answer)
        if self.chance(0.05):
            self.random.shuffle(messages)
        return messages, tools


def conversations(seed, count):
    maker = Maker(seed)
    return [maker.conversation() for _ in range(count)]
